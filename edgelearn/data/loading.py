"""Decode pictures on a few threads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np

from edgelearn.data.dataset import ImageDataset
from edgelearn.errors import ShapeError

_WORKERS = min(4, cpu_count() or 1)


def load_images(dataset: ImageDataset, indices: Sequence[int], size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Decode the pictures at `indices` to uint8 of shape (n, size, size, 3), into `out` if given.

    Raises DataError for a picture that cannot be read, ShapeError if `out` doesn't fit.
    """
    shape = (len(indices), size, size, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8:
        raise ShapeError(f"out must be uint8 of shape {shape}, got {out.dtype} of shape {out.shape}.")

    def decode_into(row: int, index: int):
        out[row] = dataset.image(index, size)

    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgelearn-decode")
    try:
        for future in [pool.submit(decode_into, row, int(index)) for row, index in enumerate(indices)]:
            future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return out
