"""Which pictures train and which test, and in which order an epoch shows them."""

from collections.abc import Iterator
from fractions import Fraction
from math import floor

import numpy as np

from edgelearn.errors import DataError

# Keeps the random streams of one seed apart.
_SPLIT, _EPOCH = 1, 2


def stratified_split(labels: np.ndarray, fraction: float = 0.8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices (train, test), both sorted: floor(fraction * n) of each class's n pictures train.

    Raises DataError when the fraction isn't between 0 and 1, or leaves a class without a training or a
    test picture.
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
                f"Class {label} has {len(members)} picture(s): a fraction of {fraction} leaves it none "
                f"to {'test' if count else 'train'} with. Add pictures or change the fraction."
            )
        train.append(members[:count])
        test.append(members[count:])
    if not train:
        raise DataError("There are no pictures to split. Check the data set.")
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order of `n` pictures in one epoch: a permutation that depends on nothing but its arguments."""
    return np.random.default_rng([seed, _EPOCH, epoch]).permutation(n)


def mini_batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Consecutive pieces of `order`, `batch_size` long; the last one is shorter if it doesn't divide."""
    if batch_size < 1:
        raise DataError(f"A mini-batch needs at least one picture, got batch_size={batch_size}.")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
