"""A folder of pictures with a subfolder for each class."""

import os
from pathlib import Path

import numpy as np

from edgelearn.data.dataset import ImageDataset
from edgelearn.data.pictures import check
from edgelearn.data.subfolders import files_below, not_a_file, subfolders
from edgelearn.data.threads import each
from edgelearn.errors import DataError

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

    found = [(label, file) for label, name in enumerate(classes) for file in files_below(root / name)]
    problems = each(_problem, [file for _, file in found])
    skipped = [(str(file), problem) for (_, file), problem in zip(found, problems, strict=True) if problem]
    usable = [entry for entry, problem in zip(found, problems, strict=True) if not problem]
    labels = np.array([label for label, _ in usable], np.int32)

    counts = np.bincount(labels, minlength=len(classes))
    for name, count in zip(classes, counts, strict=True):
        if count < 2:
            lost = [entry for entry in skipped if (root / name) in Path(entry[0]).parents]
            raise DataError(
                f"Class {name!r} in {root} has {count} usable picture(s), and at least 2 are needed."
                + (f" {len(lost)} file(s) could not be used, the first because: {lost[0][1]}" if lost else "")
                + f" Add JPEG or PNG pictures to {root / name}, or remove that folder."
            )
    return ImageDataset(
        name=root.resolve().name,
        origin="folder",
        description=f"{len(usable):,} pictures in {len(classes)} classes from the folder {root}"
        + (f"; {len(skipped)} file(s) skipped." if skipped else "."),
        class_names=tuple(classes),
        labels=labels,
        items=[file for _, file in usable],
        skipped=skipped,
    )


def _problem(file: Path) -> str | None:
    """Why this file can't be used, or None."""
    if problem := not_a_file(file):
        return problem
    try:
        check(file, str(file))
    except DataError as error:
        return str(error)
    return None
