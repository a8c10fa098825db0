"""A slider for the threshold, with false accepts and false rejects."""

from __future__ import annotations

import ipywidgets

from edgelearn.lab.runs import figures

from .enrolment import Enrolment
from .plots import plot_det

_STEPS = 1000


class ThresholdBox(ipywidgets.VBox):
    """Slider, rates and curves of an `enrolment`. The slider ranges from the lowest score to the highest.

    The slider holds a step, an integer, and not the threshold: browsers round what a slider shows and send it back,
    which would move the threshold.
    """

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.slider = ipywidgets.IntSlider(
            description="Threshold", max=_STEPS, readout=False, disabled=True, layout={"width": "40em"}
        )
        self._shown = 0
        self.rates = ipywidgets.HTML()
        self.curves = ipywidgets.Image(format="png", layout={"display": "none"})
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(self._slid, "value")
        enrolment.observe(lambda _: self._draw(), ["threshold", "listener"])
        self._draw()

    def _slid(self, change: dict) -> None:
        if change["new"] != self._shown:
            low, high = self.enrolment.score_range
            self.enrolment.threshold = low + (high - low) * change["new"] / _STEPS

    def _draw(self) -> None:
        enrolment, slider = self.enrolment, self.slider
        count = len(enrolment.known)
        self.curves.layout.display = None if count else "none"
        slider.disabled = enrolment.listener is None
        if slider.disabled:
            self.rates.value = ""
            return
        low, high = enrolment.score_range
        self._shown = round(_STEPS * (enrolment.threshold - low) / (high - low)) if high > low else 0
        slider.value = self._shown
        accepted, rejected = enrolment.rates()
        rejects = (
            f"{rejected:.1%} of {count} enrolled clips, each scored without itself."
            if count
            else "enrol a second clip of a word to measure them."
        )
        self.rates.value = (
            f"Threshold {enrolment.threshold:.3f}. False accepts: {accepted:.1%} of {len(enrolment.unknown)} clips of "
            f"other words. False rejects: {rejects}"
        )
        if count:
            self.curves.value = figures.to_png(plot_det(enrolment.known, enrolment.unknown, enrolment.threshold))
