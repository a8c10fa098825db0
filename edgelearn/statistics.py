"""The few statistics that results are reported with: intervals, ratios of times measured together, confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgelearn.errors import DataError, ShapeError


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
    from statistics import NormalDist  # slow to import, as is scipy below

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


def margin_text(values: Sequence[float] | np.ndarray, sign: str = "+") -> str:
    """Values (n,) as "mean ± margin" of their 95 % interval, to a tenth; a single value alone. `sign`: "+" writes that
    of positive means, too (default), "" doesn't."""
    if len(values) == 1:
        return f"{values[0]:{sign}.1f}"
    found = interval(values)
    return f"{found.mean:{sign}.1f} ± {found.margin:.1f}"


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


MIN_ROUNDS = 3
TOO_NOISY = 0.5  # share of disturbed rounds beyond which times say more of other processes than of the device
TOO_WIDE = 0.3  # spread of the same step's times beyond which their median is no measurement
REMEDY = "Close other programs, or measure more rounds (--rounds)."
FEW, SPREAD = "too few rounds", "spread too large"
ADVICE = {  # by refusal
    FEW: f"{FEW}: measure {MIN_ROUNDS} or more (--rounds).",
    SPREAD: f"{SPREAD}: the ratio varies by more than it differs from 1. {REMEDY}",
}


@dataclass(frozen=True)
class Ratio:
    """Times of one variant over those of another, round by round.

    - `ratio`, `low`, `high`: median and quartiles over the rounds.
    - `refusal`: the reason why the ratio must not be shown, FEW or SPREAD, else None.
    """

    ratio: float
    low: float
    high: float
    refusal: str | None

    def __str__(self) -> str:
        return self.refusal or f"{self.ratio:.2f} ({self.low:.2f} – {self.high:.2f})"


def compare(seconds: Sequence[float] | np.ndarray, reference: Sequence[float] | np.ndarray) -> Ratio:
    """Ratio of `seconds` to `reference`, both measured in the same rounds, in the same order.

    Each round gives a ratio of two times measured close together, so what disturbs both cancels. The difference is the
    median of those ratios, as a factor above 1. The spread is the upper quartile over the lower one, or the factor
    between the median of ratios and the ratio of medians if that is larger: they part when one side alone was
    disturbed. A spread that isn't smaller than the difference refuses the ratio; swapping sides changes no refusal.

    Raises ValueError for lists that are empty or differ in length.
    """
    if len(seconds) != len(reference) or len(seconds) == 0:
        raise ValueError(f"Needs as many times on both sides, got {len(seconds)} and {len(reference)}.")
    # In logarithms, where swapping the sides changes signs and nothing else.
    low, middle, high = np.quantile(np.log(seconds) - np.log(reference), (0.25, 0.5, 0.75))
    spread = max(high - low, abs(np.log(np.median(seconds)) - np.log(np.median(reference)) - middle))
    refusal = None
    if len(seconds) < MIN_ROUNDS:
        refusal = FEW
    elif spread >= abs(middle):
        refusal = SPREAD
    return Ratio(float(np.exp(middle)), float(np.exp(low)), float(np.exp(high)), refusal)


def disturbance(noise: float, spread: float) -> str:
    """Why nothing may be concluded from times; empty if nothing is wrong with them.

    Arguments:
    - `noise`: share of the rounds during which other processes used the cores.
    - `spread`: of the same step's times, upper quartile minus lower one, as a share of the median.
    """
    if noise > TOO_NOISY:
        return f"other processes used the cores in {noise:.0%} of the rounds"
    return f"the times of the same step spread by {spread:.0%}" if spread > TOO_WIDE else ""


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """(lower quartile, median, upper quartile)."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)


def confusion_matrix(true: ArrayLike, predicted: ArrayLike, n: int) -> np.ndarray:
    """Counts [n, n] (int64): row is the true class, column the predicted one.

    Raises ShapeError unless both are equally long lists of integers from 0 to n - 1.
    """
    rows, columns = np.asarray(true), np.asarray(predicted)
    if rows.ndim != 1 or rows.shape != columns.shape:
        raise ShapeError(
            f"True and predicted classes must be two equally long lists, but have shapes {rows.shape} and "
            f"{columns.shape}."
        )
    for name, classes in (("true", rows), ("predicted", columns)):
        if classes.size and classes.dtype.kind not in "iu":
            raise ShapeError(f"The {name} classes must be integers, but are {classes.dtype}. Take the argmax first.")
        if classes.size and not (classes.min() >= 0 and classes.max() < n):
            raise ShapeError(
                f"The {name} classes must lie from 0 to {n - 1}, but reach from {classes.min()} to {classes.max()}."
            )
    cells = rows.astype(np.int64) * n + columns.astype(np.int64)
    return np.bincount(cells, minlength=n * n).reshape(n, n)
