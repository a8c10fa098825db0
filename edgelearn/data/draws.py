"""Random numbers for each example of a data set and each epoch."""

from functools import lru_cache

import numpy as np


def draws(seed: int, stream: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in 0..1 for each of `indices`: float64 (n, count).

    They depend on the seed, the stream (a purpose's own number), the epoch and the index alone: not on how many
    examples there are, in which order they are asked for, or in batches of which size. So a resumed training sees what
    an uninterrupted one would, and two trainings with one seed see the same.
    """
    indices = np.asarray(indices, np.int64)
    if not len(indices):
        return np.empty((0, count))
    return _table(seed, stream, epoch, count, capacity(indices))[indices]


def capacity(indices: np.ndarray) -> int:
    """How many examples to draw for, so that `indices` are among them: a power of two, and so one of few sizes, of
    which an epoch's numbers are drawn once or a few times."""
    return 1 << int(indices.max()).bit_length()


@lru_cache(maxsize=8)
def _table(seed: int, stream: int, epoch: int, count: int, capacity: int) -> np.ndarray:
    """Drawn in order, so more examples change nothing for the first ones."""
    return np.random.default_rng([seed, stream, epoch]).random((capacity, count))
