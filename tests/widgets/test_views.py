"""The views with controls: a form, precision, budgets, thresholds."""

import threading
from dataclasses import dataclass, fields, make_dataclass, replace
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import LaunchTimes, Request, account
from edgelearn.errors import DataError, PlanError
from edgelearn.experiments import EXPERIMENTS
from edgelearn.experiments.config import Config, ConfigError, setting
from edgelearn.experiments.experiment import Experiment
from edgelearn.experiments.finetune import FinetuneConfig
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.memory import MemoryConfig
from edgelearn.experiments.precision import TASKS, PrecisionConfig
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v2_cifar, resnet8
from edgelearn.runtime import choose_device
from edgelearn.widgets import BitsView, BudgetView, Form, RocView, views
from edgelearn.widgets.forms import ExperimentView, Slider
from edgelearn.widgets.views import rates
from edgelearn.widgets.worker import WorkerState
from tests.experiments import precision_tiny
from tests.widgets.conftest import TinyConfig, load


@dataclass(frozen=True)
class Everything(Config):
    name: str = setting("x", "a name")
    flag: bool = setting(False, "a flag")
    count: int | None = setting(None, "a number", minimum=1, maximum=10**6)
    hour: int = setting(3, "an hour", minimum=0, maximum=23)
    rate: float = setting(0.003, "a rate", above=0)
    color: str | None = setting("red", "a color", choices=("red", "blue"))
    bits: str = setting("8", "bits", choices=("4", "8"), ordered=True)
    layers: tuple[str, ...] = setting(("a", "b"), "layers")


@dataclass(frozen=True)
class TogetherConfig(Config):
    first: int = setting(1, "a number", minimum=0)
    second: int = setting(2, "a larger one")

    def check(self) -> None:
        super().check()
        if self.second <= self.first:
            raise ConfigError("second", f"{self.second} is not above {self.first}.")


@pytest.mark.parametrize("config", [FlowersConfig, PrecisionConfig, MemoryConfig, KeywordsConfig, Everything])
def test_every_field_has_a_control(config):
    form = Form(config())
    assert sorted(form.controls) == sorted(field.name for field in fields(config))
    form._changed({})
    assert form.config == config() and not form.error, "reading the controls changes no value"


def test_a_new_field_is_a_new_control():
    extended = make_dataclass(
        "Extended", [("patience", int, setting(5, "epochs"))], bases=(FlowersConfig,), frozen=True
    )
    form = Form(extended(), ["patience", "seed"])
    form.controls["patience"].value = "7"
    assert list(form.controls) == ["patience", "seed"] and form.config == extended(patience=7)


@pytest.mark.parametrize(
    ("name", "kind", "shown", "value"),
    [
        ("name", ipywidgets.Text, "y", "y"),
        ("flag", ipywidgets.Checkbox, True, True),
        ("count", ipywidgets.Text, "5", 5),
        ("hour", Slider, 5, 5),
        ("rate", ipywidgets.Text, "1e-3", 0.001),
        ("color", ipywidgets.Dropdown, None, None),
        ("bits", Slider, "4", "4"),
        ("layers", ipywidgets.Text, "c d", ("c", "d")),
    ],
)
def test_controls(name, kind, shown, value):
    form, seen = Form(Everything()), []
    form.observe(lambda change: seen.append(change["new"]), "config")
    control = form.controls[name]
    assert isinstance(control, kind) and (control.hint if kind is Slider else control.tooltip)
    control.value = shown
    assert seen == [form.config] == [replace(Everything(), **{name: value})]


def test_choices_that_the_class_does_not_know():
    form = Form(MemoryConfig(), choices={"task": ("sample", "cifar10")})
    assert [value for _, value in form.controls["task"].options] == ["sample", "cifar10"]


@pytest.mark.parametrize("text", ["0", "many", "200000000000"])
def test_a_form_with_a_bad_field_hands_out_nothing_and_keeps_the_others(text):
    form, seen = Form(Everything()), []
    form.observe(lambda change: seen.append(change["new"]), "config")
    form.controls["count"].value, form.controls["rate"].value = text, "0.5"
    assert text in form.error and form.error.startswith("count: ") and seen == []
    assert text in form._errors["count"].value and form.controls["count"].layout.border_left
    assert not form._errors["rate"].value and not form.controls["rate"].layout.border_left
    with pytest.raises(ConfigError, match="count: "):
        _ = form.config
    form.controls["count"].value = "2"
    assert not form.error and not form.controls["count"].layout.border_left
    assert [form.config] == seen == [Everything(count=2, rate=0.5)]


def test_a_mark_goes_after_the_form_has_the_new_values():
    """Fields are read on a thread of their own in JupyterLab: a cell that runs once the mark is gone reads them."""
    form, seen = Form(Everything()), []
    form._errors["count"].observe(lambda change: seen.append(form.error or form.config), "value")
    form.controls["count"].value, form.controls["rate"].value = "many", "0.5"
    form.controls["count"].value = "2"
    assert "many" in seen[0] and seen[1:] == [Everything(count=2, rate=0.5)]


def test_fields_that_do_not_fit_together_are_named():
    form = Form(TogetherConfig(), ["first"])
    form.controls["first"].value = "3"
    assert "second: " in form.error and "second" in form._error.value
    with pytest.raises(ConfigError, match="second"):
        _ = form.config


@pytest.mark.parametrize("config", [FlowersConfig, FinetuneConfig, PrecisionConfig, MemoryConfig, KeywordsConfig])
def test_endless_trainings_are_refused_by_commands_and_forms(config):
    with pytest.raises(ConfigError, match="too large: the maximum is 1000000"):
        config(epochs=200_000_000_000)


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("images", "no/such/folder", "there is no folder &#x27;no/such/folder&#x27;"),
        ("weights", "no/such/file.h5", "there is no file"),
        ("trainable", "conv_pw_99", "conv_pw_99"),
        ("label_smoothing", "0.1", ""),
    ],
)
def test_what_cannot_be_loaded_is_said_beside_its_field(tmp_path, field, text, said):
    """A wrong folder or layer passed the form, and ended in a traceback."""
    form = Form(FlowersConfig(sample=True, epochs=2), experiment=FlowersExperiment, store=RunStore(tmp_path))
    form.controls[field].value = text
    form.estimate.wait()
    assert said in form._errors[field].value and set(form.problems) == ({field} if said else set())
    if said:
        with pytest.raises(ConfigError, match=field):
            _ = form.config
    else:
        assert " MB</b> of device memory planned, about <b>" in form.estimate.value


def test_trainings_that_are_started_from_a_form_wait_for_each_other(tmp_path, gate):
    def loaded(config):
        training = load(config)
        training.gate = gate
        return training

    presets = {"short": TinyConfig(epochs=1), "long": TinyConfig(epochs=4)}
    experiment = Experiment("toys", TinyConfig, loaded, command="toys", presets=lambda: presets)
    view = ExperimentView(experiment, RunStore(tmp_path / "runs"))
    assert view.form.config == presets["short"] and view.form.controls["task"].value == "numbers"
    view._preset.value = "long"
    view.form.controls["seed"].value = "5"
    first = view.start()
    gate.allow(1)
    view.form.controls["epochs"].value = "no"
    assert view.start() is None and "Not started. epochs: " in view._said.value
    view.form.controls["epochs"].value = "2"
    second = view.start()
    assert "Waits for 1 training to end." in view._said.value and view.trainings == [second, first]
    assert first.training.state is WorkerState.RUNNING and second.training.run is None
    gate.open()
    view.wait()
    assert [run.config["epochs"] for run in (first.training.run, second.training.run)] == [4, 2]
    titles = [title.value for title in view._jobs.children[::2]]
    assert titles == ["<b>long, epochs 2, seed 5</b>", "<b>long, seed 5</b>"]


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_experiment_has_a_form(tmp_path, kind):
    view = ExperimentView(kind, RunStore(tmp_path), names=())
    assert view._preset.options and view.experiment.kind == kind
    view.form.estimate.ask(None)
    view.wait()


# -- precision, budgets, thresholds ------------------------------------------------------------------------------------


@pytest.fixture
def bits(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "sample", precision_tiny.KIND)
    view = BitsView(RunStore(tmp_path / "runs"), PrecisionConfig("sample", epochs=1))
    yield view
    view.close()
    view.wait()


def test_a_moved_slider_trains_once(bits):
    for name, value in (("gradients", "4"), ("observer", "current"), ("observer", "in-hindsight")):
        bits._form.controls[name].value = value
        bits.wait()
        assert getattr(bits.config, name) == value and bits.config in bits.accuracies
        assert f"8/8/4 {bits.config.observer}" in bits._status.value and bits._chart.svg[:4] == "<svg"
        assert bits._bar.value == 1.0
    assert len(bits.accuracies) == len(bits.store.list()) == 2, "what was trained is shown at once"


def test_any_precision_may_be_the_first(tmp_path):
    with_odd = BitsView(RunStore(tmp_path / "runs"), PrecisionConfig("sample", "7", "fp16", "fp32"))
    assert (with_odd.config.weights, with_odd.config.activations) == ("7", "fp16")


def test_what_cannot_be_trained_says_why(bits, monkeypatch):
    def fail(*arguments):
        raise DataError("The pictures are gone: put <them> back.")

    monkeypatch.setattr(views, "PrecisionExperiment", SimpleNamespace(load=fail))
    bits.train()
    bits.wait()
    assert "put &lt;them&gt; back" in bits._status.value and not bits.accuracies


def test_the_slider_plans_again():
    device = choose_device(None).device
    costs = LaunchTimes("a test", 1e11, 1e10)
    request = Request(resnet8(), 64, 64, el.SGD(0.1), "batch")
    view = BudgetView(request, device, (64, 6, 0), costs=costs)
    view.wait()
    assert view.budget == "64 MB stored" and not view.plans["64 MB stored"].request.activation_memory
    before = view._chart.svg
    view._size.value = 6
    view.wait()
    plan = view.plans["6 MB stored"]
    assert account(plan).stored <= 6e6 and plan.request.activation_memory
    assert f"{costs.step(plan) * 1e3:.1f} ms" in view.status and "a test" in view.status
    assert before.startswith("<svg") and view._chart.svg not in ("", before)
    view._size.value = 0
    view.wait()
    assert view._chart.layout.display == "none"
    assert view.plans["0 MB stored"] is None and "over the budget of 0 MB" in view.status
    refused = view.status
    view._size.value = 64
    assert view._chart.layout.display is None
    view.request = None  # nothing is planned twice
    view._size.value = 0
    assert view.status == refused
    view.request, view._size.value = request, 64
    view._count.value = "device"
    view.wait()
    assert view.plans["64 MB device"].peak_bytes <= 64e6


def test_the_slider_moves_the_threshold():
    assert rates(np.array([0.5, 0.1, 0.9, 0.7]), np.array([0.0, 0.5, 0.6, 2.0])).tolist() == [1.0, 0.75, 0.5, 0.0]
    own, others = np.linspace(0.4, 1, 50), np.linspace(-1, 0.6, 100)
    view = RocView(own, {"others": others})
    assert abs((own >= view.threshold).mean() - 0.9) < 0.03
    before = view.curves.svg
    view.slider.index = len(view.slider.texts) - 1
    assert view.threshold == 1.0 and "2.0%" in view.rates.value and "0.0% of others" in view.rates.value
    assert before.startswith("<svg") and view.curves.svg != before
    assert "alt='Chart. Own accepted over Others accepted: others" in view.curves.value


def test_a_budget_that_is_left_is_not_planned_to_its_end(monkeypatch):
    began, go_on, planned = threading.Event(), threading.Event(), []

    def slow(request, device, budget, launch_times, progress):
        began.set()
        assert go_on.wait(30)
        progress(budget)
        planned.append(budget)
        raise PlanError(f"Nothing fits {budget}.")

    monkeypatch.setattr(views, "make_plan", slow)
    view = BudgetView(Request(mobilenet_v2_cifar()), choose_device(None).device, (64, 6, 4))
    assert began.wait(30) and "Planning within 64 MB stored" in view.status
    view._size.value = 6
    view._size.value = 4
    assert "Planning within 4 MB stored" in view.status and view._chart.layout.display == "none"
    go_on.set()
    view.wait()
    assert planned == ["4 MB stored"] and "Nothing fits 4 MB" in view.status
