import pytest

from edgelearn.errors import DataError
from edgelearn.experiments.precision import TASKS, PrecisionConfig, PrecisionExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.widgets import BitsView
from tests.experiments import precision_tiny

BASE = PrecisionConfig("sample", epochs=1)


@pytest.fixture
def view(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "sample", precision_tiny.KIND)
    view = BitsView(RunStore(tmp_path / "runs"), BASE)
    yield view
    view.close()
    view.wait()


def test_a_moved_slider_trains_once(view):
    view._form.controls["gradients"].value = "4"
    view.wait()
    assert list(view.accuracies) == [view.config] and view.config.gradients == "4"
    assert "8/8/4 in-hindsight" in view._status.value and view._chart.value[:4] == b"\x89PNG"
    assert view._bar.value == 1.0
    view._form.controls["observer"].value = "current"
    view.wait()
    view._form.controls["observer"].value = "in-hindsight"
    view.wait()
    assert len(view.accuracies) == len(view.store.list()) == 2, "what was trained is shown at once"
    assert view.config.observer == "in-hindsight" and "8/8/4 in-hindsight" in view._status.value


def test_any_precision_may_be_the_first(tmp_path):
    with_odd = BitsView(RunStore(tmp_path / "runs"), PrecisionConfig("sample", "7", "fp16", "fp32"))
    assert (with_odd.config.weights, with_odd.config.activations) == ("7", "fp16")


def test_what_cannot_be_trained_says_why(view, monkeypatch):
    def fail(*arguments):
        raise DataError("The pictures are gone: put <them> back.")

    monkeypatch.setattr(PrecisionExperiment, "load", fail)
    view.train()
    view.wait()
    assert "put &lt;them&gt; back" in view._status.value and not view.accuracies
