"""Scores of recordings, and the threshold that accepts."""

from __future__ import annotations

from math import floor

import numpy as np

from edgelearn.errors import DataError

from .spreading import unit


def scores(outputs: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return cosines from -1 to 1, float (n, users), of a network's outputs (n, size) and users' vectors (users,
    size)."""
    return unit(np.asarray(outputs, np.float64)) @ unit(np.asarray(np.atleast_2d(vectors), np.float64)).T


def warm_up_threshold(warm_up: np.ndarray, true_positive_rate: float = 0.9) -> float:
    """Return the score at which a user's own recordings are accepted with about the wanted rate: of n warm-up scores,
    the ⌊n (1 - rate)⌋-th in ascending order, counted from 0 (Hosseini et al. 2021, section 3.3).

    Arguments:
    - `warm_up`: scores of the user's own recordings after training (n,).
    - `true_positive_rate`: above 0 and up to 1 (default 0.9).

    Raises DataError without scores, and for another rate.
    """
    if not 0 < true_positive_rate <= 1:
        raise DataError(f"A true positive rate lies above 0 and is at most 1, unlike {true_positive_rate}.")
    if not np.size(warm_up) or not np.isfinite(warm_up).all():
        raise DataError("A threshold needs at least one finite score of the user's own recordings.")
    ascending = np.sort(np.ravel(warm_up))
    return float(ascending[floor(len(ascending) * (1 - true_positive_rate) + 1e-9)])
