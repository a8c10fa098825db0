"""Read many files: folders with a subfolder for each class, on several threads, within a limit on memory."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import cpu_count
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np

from edgelearn.display import megabytes, plural
from edgelearn.errors import DataError, ShapeError

_WORKERS = min(4, cpu_count() or 1)


def each(work: Callable, values: Iterable) -> list:
    """Return `work(value)` for each of `values`, in order. The first error cancels pending work and is raised, after
    all threads have ended."""
    if len(values := list(values)) < 2:  # a frame of a recording takes less than a thread's start
        return [work(value) for value in values]
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgelearn-data")
    try:
        return [future.result() for future in [pool.submit(work, value) for value in values]]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


LIMIT = 640_000_000  # bytes: one picture of 80 million pixels


class DecodingLimit:
    """Lets threads decode as long as what they decode takes less than `limit` bytes together; others wait.

    Arguments:
    - `limit`: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._held, self._changed = limit, 0, Condition()

    @contextmanager
    def hold(self, nbytes: int, name: str) -> Iterator[None]:
        """Hold `nbytes` for the block, waiting until there is room.

        Raises DataError, calling the file `name`, if that is more than all threads together may hold.
        """
        if nbytes > self.limit:
            raise DataError(
                f"{name} takes {megabytes(nbytes)} to decode, more than the {megabytes(self.limit)} that all threads "
                f"may take together. Scale it down, cut it into pieces, or remove it."
            )
        with self._changed:
            self._changed.wait_for(lambda: self._held + nbytes <= self.limit)
            self._held += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()


decoding = DecodingLimit(LIMIT)


class Labelled:
    """Base of the labelled data sets, frozen dataclasses. Raises DataError if there aren't as many labels as items, or
    one has no name."""

    name: str
    class_names: tuple[str, ...]
    labels: np.ndarray
    items: Sequence[Any]
    nouns = "examples"

    def __post_init__(self):
        self.column("labels", np.int32)
        labels, names = self.labels, len(self.class_names)
        if labels.size and not 0 <= labels.min() <= labels.max() < names:
            raise DataError(
                f"{self.name}: labels run from {labels.min()} to {labels.max()}, but {names} class names allow 0 to "
                f"{names - 1}."
            )

    def __len__(self) -> int:
        return len(self.items)

    def column(self, what: str, dtype: type) -> None:
        """Make an array of a field that has a value for each item."""
        values = np.asarray(getattr(self, what), dtype)
        object.__setattr__(self, what, values)
        if values.shape != (len(self.items),):
            raise DataError(
                f"{self.name}: {len(self.items)} {self.nouns} need as many {what}, got shape {values.shape}."
            )


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that report skipped files, (path, reason)."""
    return [f"  skipped {path}: {why}" for path, why in skipped]


def read_labelled(
    root: Path, classes: list[str], read: Callable[[Path, str], object], noun: str, kinds: str, least: int,
    short: Callable[[str, int], str],
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of a data set of the files below `root`'s subfolders `classes`, without those for which
    `read(file, name)` raises DataError.

    Arguments:
    - `noun`: of the examples and classes, as in "{:,} pictures in {} classes".
    - `kinds`: of files that may be added.
    - `least`: usable files that each class needs; `short(class, count)` begins the message of the DataError otherwise.
    """
    files = [(label, file) for label, name in enumerate(classes) for file in files_below(root / name)]
    problems = each(lambda entry: _problem(entry[1], read), files)
    good = [entry for entry, why in zip(files, problems, strict=True) if not why]
    skipped = [(str(file), why) for (_, file), why in zip(files, problems, strict=True) if why]
    labels = np.array([label for label, _ in good], np.int32)
    for name, count in zip(classes, np.bincount(labels, minlength=len(classes)), strict=True):
        if count < least:
            lost = [reason for file, reason in skipped if (root / name) in Path(file).parents]
            unused = f" {plural(len(lost), 'file')} could not be used, the first because: {lost[0]}" if lost else ""
            raise DataError(f"{short(name, count)}{unused} Add {kinds} to {root / name}, or remove that folder.")
    left_out = f"; {plural(len(skipped), 'file')} skipped." if skipped else "."
    return {
        "name": printable(root.resolve().name), "origin": "folder", "labels": labels, "skipped": skipped,
        "description": f"{noun.format(len(good), len(classes))} from the folder {root}{left_out}",
        "class_names": tuple(map(printable, classes)), "items": [file for _, file in good],
    }  # fmt: skip


def filled(shape: tuple[int, ...], dtype: type, out: np.ndarray | None, row: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return an array of `row(i)` for each of its rows, made on several threads: `out` if given. Raises ShapeError if
    that has another shape or type."""
    if out is None:
        out = np.empty(shape, dtype)
    elif out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out must be {np.dtype(dtype)} of shape {shape}, got {out.dtype} of shape {out.shape}.")
    array = out

    def fill(i: int) -> None:
        array[i] = row(i)

    each(fill, range(len(array)))
    return array


def subfolders(path: str | os.PathLike, what: str, layout: str) -> tuple[Path, list[str]]:
    """Return the folder `path` and the sorted names of its subfolders, without hidden ones.

    Raises DataError if there is no such folder, it can't be read, or has no subfolders; the message calls the folder
    `what` and ends in `layout`.
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


def printable(name: str) -> str:
    """A file's name as text that can be drawn and stored: bytes that aren't UTF-8 are escaped, as in "caf\\xe9"."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def files_below(folder: Path) -> list[Path]:
    """All files below a folder, sorted, without hidden ones."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        files += [Path(parent, name) for name in sorted(names) if not _hidden(name)]
    return files


def _problem(path: Path, read: Callable[[Path, str], object]) -> str | None:
    """Reason why a file can't be used, or None. A dangling link, or a pipe, which would block, is not read."""
    if not path.is_file():
        return f"{path} is not a file. Remove it."
    try:
        read(path, str(path))
    except DataError as error:
        return str(error)
    return None


def _hidden(name: str) -> bool:
    return name.startswith(".")
