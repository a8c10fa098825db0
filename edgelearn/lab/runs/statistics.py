"""The few statistics that results are reported with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from edgelearn.errors import DataError


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval (low, high) for a proportion of `successes` in `n` trials, both within [0, 1].

    E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22 (1927), 209-212. Without continuity correction.
    Raises DataError unless n >= 1, 0 <= successes <= n and 0 < confidence < 1.
    """
    if n < 1 or not 0 <= successes <= n:
        raise DataError(f"An interval needs 0 <= successes <= n and n >= 1, but got {successes} of {n}.")
    if not 0 < confidence < 1:
        raise DataError(f"The confidence must lie between 0 and 1, such as 0.95, but is {confidence}.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    center = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At the ends the bounds are exactly 0 and 1; rounding would leave them a hair off.
    low = 0.0 if successes == 0 else (center - spread) / scale
    high = 1.0 if successes == n else (center + spread) / scale
    return low, high


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1); the deviation of one value is NaN, being unknown.

    Raises DataError if there are no values.
    """
    array = _array(values)
    return float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else math.nan


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. Raises DataError if there are no values."""
    return float(np.median(_array(values)))


def _array(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise DataError("There are no values to summarize: give at least one.")
    return array
