"""A folder of pictures with a subfolder for each class."""

import os

from edgelearn.errors import DataError

from .dataset import ImageDataset
from .pictures import check
from .subfolders import printable, subfolders, usable_files

_LAYOUT = "Expected a folder with a subfolder of JPEG or PNG pictures for each class, such as roses/ and tulips/."


def load_folder(path: str | os.PathLike) -> ImageDataset:
    """Load a folder whose subfolders are the classes, numbered in sorted order.

    Pictures may have any size and lie in nested folders; hidden files are ignored. Every file is decoded once, so that
    none can fail during training; unusable files are listed in `skipped`.

    Raises DataError if there is no such folder, or fewer than two classes or two usable pictures of a class.
    """
    root, classes = subfolders(path, "picture folder", _LAYOUT)
    if len(classes) < 2:
        raise DataError(f"The picture folder {root} has only one class, {classes[0]!r}: two are needed. {_LAYOUT}")

    found = usable_files(root, classes, check)
    found.require(
        2,
        lambda name, count: f"Class {name!r} in {root} has {count} usable picture(s), and at least 2 are needed.",
        "JPEG or PNG pictures",
    )
    return ImageDataset(
        name=printable(root.resolve().name),
        origin="folder",
        description=f"{len(found.files):,} pictures in {len(classes)} classes from the folder {root}"
        + (f"; {len(found.skipped)} file(s) skipped." if found.skipped else "."),
        class_names=tuple(map(printable, classes)),
        labels=found.labels,
        items=found.files,
        skipped=found.skipped,
    )
