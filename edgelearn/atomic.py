"""Files that survive a kill at any moment: a reader finds the old contents or the new, never half.

A whole file is written to a temporary neighbor, flushed to the disk, and renamed over the old one; the
folder is flushed too, because the rename is recorded there. A file of lines grows by one line at a time;
a line counts once its newline is there, so a torn one is no line, and the next append cuts it off.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgelearn.errors import FormatError, RunError

TEMPORARY_SUFFIX = ".tmp"
_BLOCK = 1 << 16
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # those that the system has
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_bytes(path: str | Path, data: bytes, previous: str | Path | None = None) -> None:
    """Replace the file at `path` with `data` in one step.

    With `previous`, the file that was at `path` is moved there first. A kill between the two renames
    leaves nothing at `path` and the complete old file at `previous`.
    Raises RunError if the disk is full or the folder can't be written; the old file is then untouched.
    """
    with _replacing(Path(path), len(data), previous) as descriptor:
        _write_all(descriptor, data)


@contextmanager
def replacing(path: str | Path, size: int) -> Iterator[BinaryIO]:
    """Open a file to write about `size` bytes to, piece by piece. It replaces the one at `path` in one step when the
    block ends. Raises RunError like `write_bytes`; after any error the old file is untouched."""
    with _replacing(Path(path), size) as descriptor, os.fdopen(descriptor, "wb", closefd=False) as file:
        yield file


@contextmanager
def _replacing(path: Path, size: int, previous: str | Path | None = None) -> Iterator[int]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with _explained(path, size):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            try:
                yield descriptor
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        _discard(temporary)
        raise


def keep(path: Path, data: bytes) -> bool:
    """Write a file of a cache; False, and a warning in the log, if that fails, such as on a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    except (OSError, RunError) as error:
        _warn(f"The cache {path.parent} can't keep all: {error}. What is missing there is made again.")
        return False
    return True


@cache
def _warn(text: str) -> None:
    """Log once."""
    logging.getLogger(__name__).warning(text)


def write_json(path: str | Path, value: Any) -> None:
    """Replace the file at `path` with `value` as indented JSON; raises RunError like `write_bytes`."""
    write_bytes(path, (to_json(value, indent=2) + "\n").encode())


def append_line(path: str | Path, line: str) -> None:
    """Add `line` (which holds no newline) to the end of the file, first cutting off a torn last line.

    Raises RunError if there is no room or no permission; the lines before are then untouched.
    """
    path = Path(path)
    if "\n" in line:
        raise RunError(f"A line for {path} holds a newline: {line!r}. Append one line at a time.")
    data = line.encode() + b"\n"
    with _explained(path, len(data)):
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        try:
            end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(path.parent)


def read_lines(path: str | Path) -> list[str]:
    """Return the complete lines of the file, without newlines; none if there is no file.

    Raises FormatError if the file can't be read as UTF-8 text.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        return data[: data.rfind(b"\n") + 1].decode().split("\n")[:-1]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} can't be read: {error}. Restore it from a backup.") from error


def to_json(value: Any, indent: int | None = None) -> str:
    """Return the JSON text of `value`, with NumPy numbers and arrays and paths as plain numbers, lists and strings.

    Raises RunError for anything else that JSON lacks.
    """
    try:
        return json.dumps(value, indent=indent, default=_plain)
    except (TypeError, ValueError) as error:
        raise RunError(f"This can't be saved as JSON: {error}. Use numbers, strings, lists and dicts.") from error


def sync_folder(folder: Path) -> None:
    """Flush the folder's list of names to the disk; Windows has no such call and opens no folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed writers left. Only for the folder's single writer."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        _discard(leftover)


def explain(error: OSError, path: Path, size: int) -> RunError:
    """Return the RunError that says why `path` (`size` bytes) could not be written and what to do."""
    elsewhere = "or choose another folder (for runs: set EDGELEARN_RUNS)"
    if error.errno in _NO_ROOM:
        reason = f"there is no room for it ({error.strerror}; {_free_space(path)})"
        remedy = f"Free at least {size:,} bytes {elsewhere}"
    elif error.errno in _NOT_ALLOWED:
        reason = f"the folder {path.parent} can't be written ({error.strerror})"
        remedy = f"Give yourself permission to write there {elsewhere}"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        return RunError(
            f"{path} ({size:,} bytes) was not written: there is no folder {path.parent}. If it was there before, it "
            f"has been moved or deleted, with whatever it held. Create it {elsewhere}."
        )
    else:
        reason = str(error.strerror or error)
        remedy = f"Check the disk {elsewhere}"
    return RunError(f"{path} ({size:,} bytes) was not written: {reason}. {remedy}. Whatever it held before is kept.")


@contextmanager
def _explained(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, path, size) from error


def _free_space(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free:,} bytes are free"
    except OSError:
        return "free space unknown"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _end_of_last_line(descriptor: int) -> int:
    """Offset just after the last newline, looking from the end so that a long file costs no more."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        os.lseek(descriptor, start, os.SEEK_SET)
        newline = os.read(descriptor, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _discard(path: Path) -> None:
    # The error that led here matters more, and `remove_leftovers` tries again.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} is not a JSON value")
