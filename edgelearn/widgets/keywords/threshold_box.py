"""A slider for the threshold, with false accepts and false rejects."""

from __future__ import annotations

import ipywidgets

from edgelearn.lab.runs import figures

from .enrolment import Enrolment
from .plots import plot_det

_STEPS = 1000


class ThresholdBox(ipywidgets.VBox):
    """Slider, rates and curves of an `enrolment`. The slider ranges from the lowest score to the highest."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.slider = ipywidgets.FloatSlider(
            description="Threshold", readout_format=".3f", disabled=True, layout={"width": "40em"}
        )
        self.rates = ipywidgets.HTML()
        self.curves = ipywidgets.Image(format="png", layout={"display": "none"})
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(self._slid, "value")
        enrolment.observe(lambda _: self._draw(), ["threshold", "listener"])
        self._draw()

    def _slid(self, change: dict) -> None:
        self.enrolment.threshold = change["new"]

    def _draw(self) -> None:
        enrolment, slider = self.enrolment, self.slider
        count = len(enrolment.known)
        self.curves.layout.display = None if count else "none"
        slider.disabled = enrolment.listener is None
        if slider.disabled:
            self.rates.value = ""
            return
        low, high = enrolment.score_range
        with slider.hold_trait_notifications():
            slider.min, slider.max, slider.step, slider.value = low, high, (high - low) / _STEPS, enrolment.threshold
        accepted, rejected = enrolment.rates()
        self.rates.value = f"False accepts: {accepted:.1%} of {len(enrolment.unknown)} clips of other words. " + (
            f"False rejects: {rejected:.1%} of {count} enrolled clips, each scored without itself."
            if count
            else "False rejects: enrol a second clip of a word to measure them."
        )
        if count:
            self.curves.value = figures.to_png(plot_det(enrolment.known, enrolment.unknown, enrolment.threshold))
