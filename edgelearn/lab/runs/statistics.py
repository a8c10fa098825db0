"""The few statistics that results are reported with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Interval:
    """Mean of `count` values, with a confidence interval of `mean` ± `margin`."""

    mean: float
    margin: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.margin:.3f}"


def interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Interval:
    """Mean of `values` (n,) with Student's t interval. Raises DataError for fewer than two values, or NaN."""
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise DataError(f"An interval needs at least two finite values, got {values.tolist()[:5]}. Measure more.")
    margin = student_t(confidence, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return Interval(float(values.mean()), float(margin), len(values))


def student_t(confidence: float, degrees: int) -> float:
    """Critical value t of Student's distribution: |T| < t with probability `confidence`."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + confidence) / 2))


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
