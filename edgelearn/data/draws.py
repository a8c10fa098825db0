"""Reproducible random numbers for each example and epoch."""

from functools import lru_cache

import numpy as np


def draws(seed: int, stream: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` numbers in 0..1 for each of `indices`: float64 (n, count).

    They depend only on the seed, the stream (a number for each purpose), the epoch and the index, not on the number of
    examples, their order or the batch size. So a resumed training sees the same numbers as an uninterrupted one.
    """
    indices = np.asarray(indices, np.int64)
    if not len(indices):
        return np.empty((0, count))
    return _table(seed, stream, epoch, count, capacity(indices))[indices]


def capacity(indices: np.ndarray) -> int:
    """Number of examples to draw for: a power of two above all `indices`, so that few tables per epoch are needed."""
    return 1 << int(indices.max()).bit_length()


@lru_cache(maxsize=8)
def _table(seed: int, stream: int, epoch: int, count: int, capacity: int) -> np.ndarray:
    """Numbers drawn in order: a larger `capacity` keeps the first ones."""
    return np.random.default_rng([seed, stream, epoch]).random((capacity, count))
