"""Split a data set, and order its examples in an epoch."""

from collections.abc import Iterator
from fractions import Fraction
from math import floor

import numpy as np

from edgelearn.errors import DataError

# Separate the random streams of one seed.
_SPLIT, _EPOCH = 1, 2


def stratified_split(labels: np.ndarray, fraction: float = 0.8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split each class of n pictures into floor(fraction * n) for training and the others for testing.

    Returns the sorted indices (train, test). Raises DataError if the fraction isn't between 0 and 1, or leaves a class
    without a training or a test picture.
    """
    if not 0 < fraction < 1:
        raise DataError(f"The training fraction must be between 0 and 1, got {fraction}. Usual is 0.8.")
    exact = Fraction(str(fraction))  # 0.29 * 100 is 28.999... in binary, and floor() would take one too few
    labels = np.asarray(labels)
    train, test = [], []
    for label in np.unique(labels):
        members = np.random.default_rng([seed, _SPLIT, int(label)]).permutation(np.flatnonzero(labels == label))
        count = floor(exact * len(members))
        if count in (0, len(members)):
            raise DataError(
                f"Class {label} has {len(members)} picture(s): a fraction of {fraction} leaves none for "
                f"{'testing' if count else 'training'}. Add pictures or change the fraction."
            )
        train.append(members[:count])
        test.append(members[count:])
    if not train:
        raise DataError("There are no pictures to split. Check the data set.")
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of `n` examples for one epoch; it depends only on the arguments."""
    return np.random.default_rng([seed, _EPOCH, epoch]).permutation(n)


def mini_batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Divide `order` into consecutive pieces of `batch_size`; the last one may be shorter."""
    if batch_size < 1:
        raise DataError(f"A mini-batch needs at least one picture, got batch_size={batch_size}.")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
