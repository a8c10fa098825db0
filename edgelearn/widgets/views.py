"""A form with a control for each field of an experiment's configuration.

Train in the precision that a form's controls choose, and compare the results.

A slider over memory budgets: the plan within each, its timeline and predicted time.

A ROC curve, and a slider for the threshold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
import traitlets

from edgelearn.compile import LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.search import COUNTS
from edgelearn.device import Device
from edgelearn.errors import DeviceError, EdgelearnError, PlanError
from edgelearn.experiments.config import Config, ConfigError, Setting, settings
from edgelearn.experiments.memory_plans import plot_timeline
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment
from edgelearn.lab.runs import RunStore, figures
from edgelearn.lab.runs.figures import PALETTE, to_png

from .training import Worker, WorkerState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SLIDER_VALUES = 100  # integers within so many values get a slider
_STYLE = {"description_width": "10em"}


class Form(ipywidgets.VBox):
    """Controls that change a configuration.

    Arguments:
    - `config`: the initial values. The trait of this name always has the configuration that the form shows; while a
      control holds an invalid value, the form shows the error and `config` stays as it was.
    - `names`: fields to show, in this order (default: all).
    - `choices`: values of fields whose choices the configuration class doesn't know, such as tasks.
    """

    config = traitlets.Instance(Config)

    def __init__(
        self, config: Config, names: Sequence[str] | None = None, choices: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        known = settings(type(config))
        self.controls: dict[str, ipywidgets.ValueWidget] = {}
        self._read: dict[str, Callable[[Any], Any]] = {}
        for name in known if names is None else names:
            setting = known[name]
            if choices and name in choices:
                setting = replace(setting, choices=tuple(choices[name]))
            self.controls[name], self._read[name] = _control(setting, getattr(config, name))
        self._error = ipywidgets.HTML()
        super().__init__([*self.controls.values(), self._error], config=config)
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def __repr__(self) -> str:
        return f"<Form: {self.config}>"

    @property
    def error(self) -> str:
        """The problem with the values shown; empty if there is none."""
        return self._error.value

    def _changed(self, change: Mapping[str, Any]) -> None:
        try:
            values = {name: self._read[name](control.value) for name, control in self.controls.items()}
            config = replace(self.config, **values)
        except ConfigError as error:
            self._error.value = f"<span style='color: {figures.ORANGE}'>{escape(str(error))}</span>"
        else:
            self._error.value = ""
            self.config = config


def _control(setting: Setting, value: Any) -> tuple[ipywidgets.ValueWidget, Callable[[Any], Any]]:
    """The widget for a setting, and the function from the widget's value to the setting's."""
    common: dict[str, Any] = {"description": setting.label, "tooltip": setting.help, "style": _STYLE}
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **common), bool
    if setting.choices is not None and not setting.many:
        options = [(str(each), each) for each in dict.fromkeys((*setting.choices, value)) if each is not None]
        if setting.optional:
            options.append(("none", None))
        if setting.ordered:
            return ipywidgets.SelectionSlider(options=options, value=value, continuous_update=False, **common), _same
        return ipywidgets.Dropdown(options=options, value=value, **common), _same
    low, high = setting.minimum, setting.maximum
    bounded = value is not None and low is not None and high is not None and high - low < _SLIDER_VALUES
    if setting.type is int and bounded:
        return ipywidgets.IntSlider(value=value, min=low, max=high, continuous_update=False, **common), int
    text = "" if value is None else " ".join(map(str, value)) if setting.many else str(value)
    control = ipywidgets.Text(value=text, placeholder=setting.help, continuous_update=False, **common)
    return control, lambda text: _parse(setting, text.strip())


def _same(value: Any) -> Any:
    return value


def _parse(setting: Setting, text: str) -> Any:
    """The value that `text` stands for. Raises ConfigError if it stands for none."""
    if not text:
        return () if setting.many else None
    try:
        return tuple(map(setting.type, text.split())) if setting.many else setting.type(text)
    except ValueError:
        raise ConfigError(setting.name, f"expected a number ({setting.type.__name__}), got '{text}'.") from None


class BitsView(ipywidgets.VBox):
    """A form for bits and observer. Each change trains in that precision, after the training that runs; of several
    changes meanwhile, the last. The kernel stays free.

    Arguments:
    - `store`: where the runs are kept.
    - `base`: the initial precision, and all other settings.
    """

    def __init__(self, store: RunStore, base: PrecisionConfig) -> None:
        self.store = store
        self.accuracies: dict[PrecisionConfig, float] = {}  # in the order of training
        self._form = Form(base, ("weights", "activations", "gradients", "observer"))
        self._wanted: PrecisionConfig | None = None
        self._shown = base
        self._worker: Worker | None = None
        self._lock = threading.RLock()
        self._bar = ipywidgets.FloatProgress(max=1.0)
        self._status = ipywidgets.HTML("Move a slider.")
        self._chart = ipywidgets.Image(format="png", layout={"display": "none"})
        super().__init__([self._form, ipywidgets.HBox([self._bar, self._status]), self._chart])
        self._form.observe(lambda change: self.train(), "config")

    @property
    def config(self) -> PrecisionConfig:
        """The configuration that the form shows."""
        return PrecisionConfig.from_dict(self._form.config.to_dict())

    def train(self) -> None:
        """Train in the precision that the form shows, or show its result if it is trained already."""
        with self._lock:
            self._wanted = self.config
            if self._worker is None:
                self._next()

    def wait(self) -> None:
        """Wait until nothing is being trained."""
        while (worker := self._worker) is not None:
            worker.wait()

    def close(self) -> None:
        """Remove the view; its training stops after the current step and is saved."""
        with self._lock:
            self._wanted = None
            if self._worker is not None:
                self._worker.stop()
        super().close()

    def update(self) -> None:
        """Show how the training goes on; called on its thread."""
        worker = self._worker
        if worker is None:
            return
        self._bar.value, self._status.value = worker.progress.share, f"{worker.progress} …"
        if worker.state is not WorkerState.RUNNING:
            if worker.results is not None:
                self.accuracies[self._shown] = worker.results["accuracy"]
                self._draw()
            elif (error := worker.error) is not None:
                text = str(error) if isinstance(error, EdgelearnError) else f"{type(error).__name__}: {error}"
                self._status.value = f"<span style='color: {figures.ORANGE}'>{escape(text)}</span>"
            with self._lock:
                self._worker = None
                self._next()

    def _next(self) -> None:
        """Train, or show, what was asked for last."""
        if self._wanted is None:
            return
        self._shown, self._wanted = self._wanted, None
        if self._shown in self.accuracies:
            self._draw()
            return
        self._worker = Worker(partial(PrecisionExperiment.load, self._shown), self.store)
        self._worker.watch(self)
        self._worker.start()

    def _draw(self) -> None:
        accuracy = self.accuracies[self._shown]
        self._bar.value = 1.0
        self._status.value = f"{name_of(self._shown)}: <b>{100 * accuracy:.1f} %</b> of the test pictures"
        rows = {name_of(config): [share] for config, share in self.accuracies.items()}
        self._chart.value = figures.to_png(figures.plot_spread(rows, "Test accuracy (%)"))
        self._chart.layout.display = None


def name_of(config: PrecisionConfig) -> str:
    """ "8/8/4 in-hindsight": bits of weights, activations and gradients, and the observer."""
    return f"{config.weights}/{config.activations}/{config.gradients} {config.observer}"


class BudgetView(ipywidgets.VBox):
    """Plans a request within the budget that the slider chooses. Plans are kept in `plans`, by budget; None if no plan
    fits.

    Arguments:
    - `request`, `device`: the step to plan.
    - `sizes`: the budgets, megabytes (10^6).
    - `count`: what the budget limits: "stored", "peak" or "device" (see compile.memory.budget).
    - `costs`: predict the time (default: the device's).
    """

    def __init__(
        self, request: Request, device: Device, sizes: Sequence[int] = (64, 48, 32, 24, 16, 12, 8, 6, 4, 2),
        count: str = "stored", costs: LaunchTimes | None = None,
    ) -> None:  # fmt: skip
        self.request, self.device, self.costs = request, device, costs or LaunchTimes.of(device)
        self.plans: dict[str, Plan | None] = {}
        self._refusals: dict[str, str] = {}
        self._size = ipywidgets.SelectionSlider(
            options=[(f"{size} MB", size) for size in sizes], description="Budget", continuous_update=False
        )
        self._count = ipywidgets.Dropdown(options=list(COUNTS), value=count, description="of")
        self._status = ipywidgets.HTML()
        self._chart = ipywidgets.Image(format="png")
        super().__init__([ipywidgets.HBox([self._size, self._count]), self._status, self._chart])
        for control in (self._size, self._count):
            control.observe(self._moved, "value")
        self._moved({})

    @property
    def budget(self) -> str:
        """The chosen budget, as text."""
        return f"{self._size.value} MB {self._count.value}"

    @property
    def status(self) -> str:
        return self._status.value

    def _moved(self, change: dict) -> None:
        if self.budget not in self.plans:
            self._status.value = f"Planning within {self.budget} …"
            self.plans[self.budget] = self._planned()
        plan = self.plans[self.budget]
        if plan is None:
            words = escape(self._refusals[self.budget])
            self._status.value = f"<span style='color: {figures.ORANGE}'>{words}</span>"
            self._chart.layout.display = "none"  # an image without a picture is shown as a broken one
            return
        found = account(plan)
        self._status.value = (
            f"<b>{found.stored / 1e6:.2f} MB stored</b>, {found.peak / 1e6:.2f} MB at the peak, "
            f"{plan.peak_bytes / 1e6:.2f} MB of device memory in all; a step is predicted to take "
            f"<b>{self.costs.step(plan) * 1e3:.1f} ms</b> ({escape(self.costs.origin)})"
        )
        self._chart.value = figures.to_png(plot_timeline(plan, f"Budget: {self.budget}"))
        self._chart.layout.display = None

    def _planned(self) -> Plan | None:
        try:
            return make_plan(self.request, self.device, self.budget, launch_times=self.costs)
        except (PlanError, DeviceError) as error:
            self._refusals[self.budget] = str(error).splitlines()[0]
            return None


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
