"""Statistics of times that were measured in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
