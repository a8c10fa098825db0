"""Folders of examples, with a subfolder for each class."""

import os
from pathlib import Path

from edgelearn.errors import DataError


def subfolders(path: str | os.PathLike, what: str, layout: str) -> tuple[Path, list[str]]:
    """The folder `path`, and the sorted names of its subfolders. Hidden ones are left out.

    Raises DataError, calling the folder `what` and ending in `layout`, when there is no such folder, it can't be read,
    or has no subfolders.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise DataError(f"The {what} {root} {problem}. {layout}")
    try:
        names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _hidden(entry.name))
    except OSError as error:
        raise DataError(f"The {what} {root} cannot be read: {error.strerror}. Check permissions.") from error
    if not names:
        raise DataError(f"The {what} {root} has no subfolders. {layout}")
    return root, names


def files_below(folder: Path) -> list[Path]:
    """The files of a folder and of those in it, in sorted order, hidden ones left out."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        files += [Path(parent, name) for name in sorted(names) if not _hidden(name)]
    return files


def not_a_file(path: Path) -> str | None:
    """Why this can't be read, or None: a dangling link, or a pipe, whose reading would never end."""
    return None if path.is_file() else f"{path} is not a file. Remove it."


def _hidden(name: str) -> bool:
    return name.startswith(".")
