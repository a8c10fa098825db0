"""The environment of a run: versions, platform, and the commit of the source."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import numpy as np

_MOST_CHANGES = 10**6  # characters
_PACKAGE = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str | None]:
    """Versions and platform; `commit` is None outside a checkout, and ends in `-dirty` with local changes."""
    return {
        "edgelearn": _version("edgelearn"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "commit": commit(_PACKAGE),
    }


def commit(folder: Path) -> str | None:
    """The commit of the checkout that tracks the files of `folder`, or None if none does."""
    # A virtual environment may lie inside somebody else's checkout, so the files must be tracked.
    if not _git(folder, "ls-files", "--", "."):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def changes(commit: str | None, folder: Path = _PACKAGE) -> str:
    """Changes of the checkout of `folder` since its commit, as `git apply` reads them, and the names of new files;
    empty if `commit`, as the environment has it, says that there are none."""
    if not (commit or "").endswith("-dirty"):
        return ""
    new = _git(folder, "ls-files", "--others", "--exclude-standard") or ""
    difference = _git(folder, "diff", "--binary", "HEAD") or ""
    if len(difference) > _MOST_CHANGES:
        difference = f"# {len(difference):,} characters, too many to keep: commit them.\n"
    return "".join(f"# new file: {name}\n" for name in new.splitlines()) + difference + "\n"


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        # Files may have any bytes.
        done = subprocess.run(command, capture_output=True, errors="surrogateescape", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip("\n") or None  # a patch may end in a context line of one space


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
