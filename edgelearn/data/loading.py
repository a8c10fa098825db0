"""Decode pictures on a few threads."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import cpu_count

import numpy as np

from edgelearn.data.dataset import ImageDataset
from edgelearn.errors import ShapeError

_WORKERS = min(4, cpu_count() or 1)


def load_images(dataset: ImageDataset, indices: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Decode the pictures at `indices` to uint8 of shape (n, size, size, 3), into `out` if given.

    Raises DataError for a picture that cannot be read, ShapeError if `out` doesn't fit.
    """
    with _pool() as pool:
        return _result(*_start(pool, dataset, indices, size, out))


@contextmanager
def _pool():
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgelearn-decode")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(pool, dataset, indices, size, out) -> tuple[np.ndarray, list[Future]]:
    shape = (len(indices), size, size, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8:
        raise ShapeError(f"out must be uint8 of shape {shape}, got {out.dtype} of shape {out.shape}.")

    def decode_into(row: int, index: int):
        out[row] = dataset.image(index, size)

    return out, [pool.submit(decode_into, row, int(index)) for row, index in enumerate(indices)]


def _result(out: np.ndarray, futures: list[Future]) -> np.ndarray:
    for future in futures:
        future.result()
    return out
