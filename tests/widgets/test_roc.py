import numpy as np

from edgelearn.widgets import RocView
from edgelearn.widgets.views import rates


def test_rates():
    thresholds = np.array([0.0, 0.5, 0.6, 2.0])
    assert rates(np.array([0.5, 0.1, 0.9, 0.7]), thresholds).tolist() == [1.0, 0.75, 0.5, 0.0]


def test_the_slider_moves_the_threshold():
    own, others = np.linspace(0.4, 1, 50), np.linspace(-1, 0.6, 100)
    view = RocView(own, {"others": others})
    assert abs((own >= view.threshold).mean() - 0.9) < 0.03
    before = bytes(view.curves.value)
    view.slider.value = view.slider.max
    assert view.threshold == 1.0 and "2.0%" in view.rates.value and "0.0% of others" in view.rates.value
    assert before.startswith(b"\x89PNG") and bytes(view.curves.value) != before
