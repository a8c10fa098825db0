"""The learning-rate finder: short training at rates that rise from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import isfinite, log10
from typing import Any

import numpy as np

from edgelearn.data.draws import epoch_order
from edgelearn.display import Displayed, Recorded, plural
from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.ops.base import number, whole

from .model import Model
from .sources import labeled

SMOOTHING = 0.98  # share of the losses before in the smoothed one, at 100 steps
DIVERGED = 4.0  # times the smallest loss
WIDTH, HEIGHT = 420, 180  # of the drawing, in pixels


@dataclass(frozen=True, repr=False)
class RateCurve(Displayed, Recorded):
    """The loss at each learning rate, which shows itself: a drawing in notebooks, a table elsewhere.

    - `rates`, `losses`: of each step, until the loss diverged.
    - `smoothed`: the losses, averaged exponentially and corrected for their start.
    - `suggestion`: the rate at which the smoothed loss falls most steeply per decade; NaN if it never falls.
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray

    entries = "rates", "losses", "suggestion"

    @property
    def suggestion(self) -> float:
        if len(self.rates) < 2:
            return float("nan")
        slopes = np.gradient(self.smoothed, np.log10(self.rates))
        return float(self.rates[slopes.argmin()]) if slopes.min() < 0 else float("nan")

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.rates), 'step')}; suggestion {self.suggestion:.1e}"

    def __str__(self) -> str:
        rows = [f"{'rate':>9}  {'loss':>10}", *map("{:>9.1e}  {:>10.4f}".format, self.rates, self.smoothed)]
        return "\n".join([*rows, f"The loss falls most steeply at {self.suggestion:.1e}."])

    def _repr_html_(self) -> str:
        """A drawing without other packages: the smoothed loss over the logarithm of the rate."""
        low, high = log10(self.rates[0]), log10(self.rates[-1])
        least, most = self.smoothed.min(), self.smoothed.max()
        x = (np.log10(self.rates) - low) / max(high - low, 1e-9) * WIDTH
        y = HEIGHT - (self.smoothed - least) / max(most - least, 1e-9) * HEIGHT
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        mark = ""
        if isfinite(self.suggestion):
            at = (log10(self.suggestion) - low) / max(high - low, 1e-9) * WIDTH
            mark = f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{HEIGHT}" stroke="#999" stroke-dasharray="4"/>'
        ends = f"{self.rates[0]:.1e} to {self.rates[-1]:.1e}, loss {least:.3f} to {most:.3f}"
        return (
            f'<svg width="{WIDTH}" height="{HEIGHT + 20}" role="img" aria-label="{escape(repr(self))}">{mark}'
            f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
            f'<text x="0" y="{HEIGHT + 16}" font-size="12" fill="currentColor">{escape(ends)}</text></svg>'
        )


def find_learning_rate(
    model: Model, x: Any, y: Any, *, least: float = 1e-6, most: float = 1.0, steps: int = 100, batch_size: int = 32,
    micro_batch: int | None = None,
) -> RateCurve:  # fmt: skip
    """Train for some steps at learning rates from `least` to `most`, each a fixed factor above the one before, and
    return the losses (Smith 2017, "Cyclical learning rates for training neural networks", section 3.3). Weights,
    optimizer state and progress of the model are afterwards as before.

    >>> curve = el.find_learning_rate(model, x, y)
    >>> model.compile(el.SGD(curve.suggestion, momentum=0.9))

    Arguments:
    - `model`: compiled; its optimizer's own rate and schedule play no part.
    - `x`, `y`: examples and targets as Model.fit takes them, in an order that follows from the model's seed.
    - `least`, `most`: first and last rate (default 1e-6 and 1). The run ends where the loss is no number, or four times
      the smallest.
    - `steps`: number of rates (default 100, at least 2).
    - `batch_size`, `micro_batch`: as in Model.fit.

    Raises PlanError for rates or steps out of range, and as Model.fit.
    """
    least, most = number("least", least, 1e-30), number("most", most, 1e-30)
    steps, batch_size = whole("steps", steps, 2), whole("batch_size", batch_size)
    if not least < most:
        raise PlanError(f"Rates rise from least to most, but {least:g} isn't below {most:g}.")
    source, targets = labeled(x, y, model.network, model.loss)
    size = min(batch_size, len(source))
    rates, losses, smoothed, average = np.geomspace(least, most, steps), [], [], 0.0
    share = SMOOTHING ** (100 / steps)
    with model.trainer(size, micro_batch) as trainer:
        order, epoch = np.empty(0, np.int64), 0
        for rate in rates:
            if len(order) < size:
                order, epoch = epoch_order(len(source), model.seed, epoch), epoch + 1
            indices, order = order[:size], order[size:]
            stream = trainer.micro_batches(source, targets, [indices])
            try:
                trainer.learning_rate = float(rate)
                loss, *_ = trainer.update(source, targets, indices, stream)
            except NonFiniteError:
                break
            average = share * average + (1 - share) * loss
            losses.append(loss)
            smoothed.append(average / (1 - share ** len(losses)))
            if len(losses) > 1 and smoothed[-1] > DIVERGED * min(smoothed):
                break
    if not losses:
        raise PlanError(f"The loss is no number at the first rate, {least:g}: check the data, or start lower.")
    return RateCurve(rates[: len(losses)], np.array(losses), np.array(smoothed))
