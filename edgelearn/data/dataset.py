"""A labelled set of pictures, decoded or drawn on demand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from .pictures import decode, describe

# Encoded bytes, a file, or a function that draws the picture: size -> uint8 (size, size, 3).
Item = bytes | Path | Callable[[int], np.ndarray]


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Labelled pictures. It holds what was given: encoded bytes, paths or drawing functions.

    Arguments:
    - `name`: short name, such as "tf_flowers".
    - `origin`: where the pictures come from: "EDGELEARN_DATA" (prepared data in a folder the user named), "tfds"
      (TensorFlow Datasets' own folder), "folder", "embedded sample" or "drawn".
    - `description`: the origin as one sentence for a reader.
    - `class_names`: names in the order of the labels.
    - `labels`: int32 (n,), each from 0 to len(class_names) - 1.
    - `items`: n pictures.
    - `skipped`: (path, reason) of each file that was left out (default none).

    Raises DataError if the numbers of pictures and labels differ, or a label has no name.
    """

    name: str
    origin: str
    description: str
    class_names: tuple[str, ...]
    labels: np.ndarray
    items: Sequence[Item] = field(repr=False)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self):
        labels = np.asarray(self.labels, np.int32)
        object.__setattr__(self, "labels", labels)
        if labels.shape != (len(self.items),):
            raise DataError(f"{self.name}: {len(self.items)} pictures need as many labels, got shape {labels.shape}.")
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.class_names):
            raise DataError(
                f"{self.name}: labels run from {labels.min()} to {labels.max()}, "
                f"but {len(self.class_names)} class names allow 0 to {len(self.class_names) - 1}."
            )

    def __len__(self) -> int:
        return len(self.items)

    def image(self, i: int, size: int) -> np.ndarray:
        """The central square of picture `i`, uint8 (size, size, 3). Raises DataError if it can't be read."""
        item = self.items[i]
        if callable(item):
            return item(size)
        return decode(item, size, describe(item, i))
