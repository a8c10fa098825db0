"""Folders of examples, with a subfolder for each class."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from .threads import each


@dataclass(frozen=True, eq=False)
class Usable:
    """files (n) that can be used, with int32 labels (n,): the positions of their subfolders. skipped: the others, as
    (path, why)."""

    root: Path
    names: list[str]
    labels: np.ndarray
    files: list[Path]
    skipped: list[tuple[str, str]]

    def require(self, least: int, short: Callable[[str, int], str], kinds: str) -> None:
        """Raises DataError when a subfolder has fewer than `least` usable files: what `short` says of its name and
        their number, and what to do; `kinds` is what a usable file may be."""
        for name, count in zip(self.names, np.bincount(self.labels, minlength=len(self.names)), strict=True):
            if count >= least:
                continue
            lost = [reason for file, reason in self.skipped if (self.root / name) in Path(file).parents]
            unused = f" {len(lost)} file(s) could not be used, the first because: {lost[0]}" if lost else ""
            raise DataError(f"{short(name, count)}{unused} Add {kinds} to {self.root / name}, or remove that folder.")


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """What a user is told of files that can't be used, (path, why): a line each."""
    return [f"  skipped {path}: {why}" for path, why in skipped]


def usable_files(root: Path, names: list[str], problem: Callable[[Path], str | None]) -> Usable:
    """All files below `root`'s subfolders `names`, but those of which `problem` says why they can't be used."""
    found = [(label, file) for label, name in enumerate(names) for file in files_below(root / name)]
    problems = each(lambda file: not_a_file(file) or problem(file), [file for _, file in found])
    good = [entry for entry, why in zip(found, problems, strict=True) if not why]
    skipped = [(str(file), why) for (_, file), why in zip(found, problems, strict=True) if why]
    return Usable(root, names, np.array([label for label, _ in good], np.int32), [file for _, file in good], skipped)


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
