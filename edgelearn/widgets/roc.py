"""A ROC curve, and a slider for the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import ipywidgets
import numpy as np

from edgelearn.lab.runs.figures import PALETTE, to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 200  # of the slider: an integer, since browsers round what a slider shows


class RocView(ipywidgets.VBox):
    """A slider for the threshold, with the rates that it leads to and the curves.

    Arguments:
    - `own`: scores of users' own recordings.
    - `impostors`: scores of others, by their name.
    - `accepted`: share of their own that the first threshold accepts (default 0.9).
    """

    def __init__(self, own: np.ndarray, impostors: Mapping[str, np.ndarray], accepted: float = 0.9) -> None:
        self.own, self.impostors = np.asarray(own), impostors
        scores = np.concatenate([self.own, *impostors.values()])
        self._low, self._high = float(scores.min()), float(scores.max())
        first = float(np.quantile(self.own, 1 - accepted))
        value = round(_STEPS * (first - self._low) / (self._high - self._low))
        self.slider = ipywidgets.IntSlider(
            value=value, max=_STEPS, description="Threshold", readout=False, layout={"width": "40em"}
        )
        self.rates, self.curves = ipywidgets.HTML(), ipywidgets.Image(format="png")
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(lambda _: self._draw(), "value")
        self._draw()

    @property
    def threshold(self) -> float:
        """The score from which a recording is accepted."""
        return self._low + (self._high - self._low) * self.slider.value / _STEPS

    def figure(self) -> Figure:
        """Draw the curves, and the threshold on each."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.5, 4), layout="constrained")
        axes = figure.add_subplot()
        thresholds = np.sort(np.concatenate([self.own, *self.impostors.values()]))[::-1]
        right = rates(self.own, thresholds)
        for color, (name, scores) in zip(PALETTE, self.impostors.items(), strict=False):
            axes.plot(rates(scores, thresholds), right, color=color, label=name)
            axes.plot(*(rates(each, np.array([self.threshold])) for each in (scores, self.own)), "o", color=color)
        axes.plot([0, 1], [0, 1], "--", color="0.6", linewidth=1, label="guessing")
        axes.set(xlabel="others accepted", ylabel="own accepted", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.legend(frameon=False, loc="lower right")
        axes.grid(alpha=0.3)
        return figure

    def _draw(self) -> None:
        at = np.array([self.threshold])
        others = ", ".join(f"{rates(scores, at)[0]:.1%} of {name}" for name, scores in self.impostors.items())
        self.rates.value = f"From {self.threshold:.3f} on, {rates(self.own, at)[0]:.1%} of one's own and {others}"
        self.curves.value = to_png(self.figure())


def rates(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of scores at or above each threshold."""
    return 1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
