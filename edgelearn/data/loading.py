"""Decode pictures on several threads."""

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import ShapeError

from .dataset import ImageDataset
from .threads import each


def load_images(dataset: ImageDataset, indices: Sequence[int], size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Decode the pictures at `indices` to uint8 of shape (n, size, size, 3), into `out` if given.

    Raises DataError for a picture that cannot be read, ShapeError if `out` doesn't fit.
    """
    shape = (len(indices), size, size, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8:
        raise ShapeError(f"out must be uint8 of shape {shape}, got {out.dtype} of shape {out.shape}.")

    def decode_into(row: int):
        out[row] = dataset.image(int(indices[row]), size)

    each(decode_into, range(len(indices)))
    return out
