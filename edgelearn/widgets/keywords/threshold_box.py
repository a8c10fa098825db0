"""A slider over the threshold; false accepts and false rejects move with it."""

from __future__ import annotations

import ipywidgets

from edgelearn.lab.runs import figures

from .enrolment import Enrolment
from .plots import plot_det

_STEPS = 1000


class ThresholdBox(ipywidgets.VBox):
    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.slider = ipywidgets.FloatSlider(
            description="Threshold", readout_format=".3f", disabled=True, layout={"width": "40em"}
        )
        self.rates = ipywidgets.HTML()
        self.curves = ipywidgets.Image(format="png", layout={"display": "none"})
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(self._slid, "value")
        enrolment.observe(lambda _: self._draw(), ["threshold", "spotter"])
        self._draw()

    def _slid(self, change: dict) -> None:
        self.enrolment.threshold = change["new"]

    def _draw(self) -> None:
        """The slider reaches from the lowest score to the highest."""
        enrolment, slider = self.enrolment, self.slider
        many = len(enrolment.known)
        self.curves.layout.display = None if many else "none"
        slider.disabled = enrolment.spotter is None
        if slider.disabled:
            self.rates.value = ""
            return
        low, high = enrolment.score_range
        with slider.hold_trait_notifications():
            slider.min, slider.max, slider.step, slider.value = low, high, (high - low) / _STEPS, enrolment.threshold
        accepted, rejected = enrolment.rates()
        self.rates.value = f"False accepts: {accepted:.1%} of {len(enrolment.unknown)} clips of other words. " + (
            f"False rejects: {rejected:.1%} of {many} clips, each left out of what it was scored with."
            if many
            else "False rejects: enrol a second clip of a word to tell."
        )
        if many:
            self.curves.value = figures.to_png(plot_det(enrolment.known, enrolment.unknown, enrolment.threshold))
