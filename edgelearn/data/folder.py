"""A folder of pictures with a subfolder for each class."""

import os
from pathlib import Path

from edgelearn.errors import DataError

from .dataset import ImageDataset
from .pictures import check
from .subfolders import subfolders, usable_files

_LAYOUT = "Expected a folder with a subfolder of JPEG or PNG pictures for each class, such as roses/ and tulips/."


def load_folder(path: str | os.PathLike) -> ImageDataset:
    """Read `path`, whose subfolders are the classes, named and numbered in sorted order.

    Pictures may be of any size and lie in nested folders; hidden files are ignored. Every file is decoded
    once, so that none can fail during training: those that can't be used are listed in `skipped`.

    Raises DataError when there is no such folder, it has fewer than two classes, or a class has fewer
    than two usable pictures.
    """
    root, classes = subfolders(path, "picture folder", _LAYOUT)
    if len(classes) < 2:
        raise DataError(f"The picture folder {root} has only one class, {classes[0]!r}: two are needed. {_LAYOUT}")

    found = usable_files(root, classes, _problem)
    found.require(
        2,
        lambda name, count: f"Class {name!r} in {root} has {count} usable picture(s), and at least 2 are needed.",
        "JPEG or PNG pictures",
    )
    return ImageDataset(
        name=root.resolve().name,
        origin="folder",
        description=f"{len(found.files):,} pictures in {len(classes)} classes from the folder {root}"
        + (f"; {len(found.skipped)} file(s) skipped." if found.skipped else "."),
        class_names=tuple(classes),
        labels=found.labels,
        items=found.files,
        skipped=found.skipped,
    )


def _problem(file: Path) -> str | None:
    """Reason why this file can't be used, or None."""
    try:
        check(file, str(file))
    except DataError as error:
        return str(error)
    return None
