"""Folders of caches. Where one can't be written or has no room, a temporary folder takes its place, and the log says so
once. Whatever lies in a cache may be deleted at any time."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

ROOM = 64_000_000  # bytes that a cache needs: the kernels of a large network
MEMORY = Path("/dev/shm")  # the last resort: a disk in main memory
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a cache lies.

    Arguments:
    - `folder`: the folder; None if there is no room anywhere.
    - `problem`: why it is not the folder that was asked for; empty if it is.
    """

    folder: Path | None
    problem: str = ""


def chosen(name: str, variable: str) -> Path | None:
    """The folder that the environment variable names, else `name` in the user's cache of edgelearn; None if the
    variable is empty, which turns the cache off."""
    named = os.environ.get(variable)
    if named is None:
        return user_cache_path("edgelearn", appauthor=False) / name
    return Path(named) if named else None


def folder(name: str, variable: str) -> Path | None:
    """The folder to use for the cache `name`, see `chosen` and `place`; None to go without."""
    wanted = chosen(name, variable)
    return wanted and place(wanted, variable).folder


def place(folder: Path, variable: str, room: int = ROOM) -> Place:
    """Return `folder`, or a temporary one if it can't be written or has less than `room` bytes free.

    Arguments:
    - `folder`: the folder; it needn't exist, and is not made.
    - `variable`: the environment variable that names another folder, for the log.
    - `room`: bytes that must be free (default 64 MB).
    """
    if not (why := problem(folder, room)):
        return Place(folder)
    found = next((path / folder.name for path in _temporary() if not problem(path, room)), None)
    instead = f"{found} is used instead" if found else "There is no other place either, so it goes without"
    _warn(f"The cache {folder} can't be used: {why}. {instead}. Free some room, or name another folder in {variable}.")
    return Place(found, why)


def problem(folder: Path, room: int = ROOM) -> str:
    """Why `folder` can't be written, or has less than `room` bytes free; empty if all is well."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if why := _unwritable(nearest):
        return why
    free = shutil.disk_usage(nearest).free
    return f"only {free / 1e6:.1f} MB are free, and {room / 1e6:.0f} MB are needed" if free < room else ""


@cache
def _unwritable(folder: Path) -> str:
    """Try to write, since permissions don't tell of read-only disks and quotas."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        return f"{folder} can't be written ({error.strerror})"
    return ""


@cache
def _temporary() -> tuple[Path, ...]:
    """Folders of this user alone: caches hold programs that will run."""
    name = f"edgelearn-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    return tuple(path for parent in (_temporary_parent(), MEMORY) if parent and (path := _private(parent / name)))


def _temporary_parent() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # Python tries to write a file in each candidate
        return None


def _private(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
    return folder if stat.S_ISDIR(found.st_mode) and mine else None


@cache
def _warn(text: str) -> None:
    """Log once."""
    _log.warning(text)
