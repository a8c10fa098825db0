"""Views with controls: a form for a configuration, precision, memory budgets, thresholds."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import numpy as np
import traitlets

from edgelearn.compile import LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.search import COUNTS
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.experiments.config import Config, ConfigError, Setting, settings
from edgelearn.experiments.memory_plans import plot_timeline
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment
from edgelearn.lab.runs import RunStore, figures

from .pictures import Chart, View, error_line
from .worker import Worker, WorkerState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SLIDER_VALUES = 100  # integers within so many values get a slider
_STEPS = 1000  # of a threshold's slider


class Slider(anywidget.AnyWidget):
    """A slider over values that have texts, which it shows and announces; Python hears of a change once it rests.
    (The sliders of ipywidgets announce the number of a choice, and have no name.)

    Arguments:
    - `options`: (text, value) of each step.
    - `value`: the first value, one of them.
    - `description`: its name.
    - `tooltip`: what it is for (default none).
    """

    _esm = Path(__file__).with_name("slider.js")
    label = traitlets.Unicode().tag(sync=True)
    tooltip = traitlets.Unicode().tag(sync=True)
    texts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int().tag(sync=True)
    disabled = traitlets.Bool().tag(sync=True)
    value = traitlets.Any()

    def __init__(self, options: Sequence[tuple[str, Any]], value: Any, description: str, tooltip: str = "") -> None:
        texts, self.values = [text for text, _ in options], [each for _, each in options]
        index = self.values.index(value)
        super().__init__(label=description, tooltip=tooltip, texts=texts, index=index, value=value)

    @traitlets.observe("index")
    def _moved(self, change: dict) -> None:
        self.value = self.values[change["new"]]

    @traitlets.observe("value")
    def _put(self, change: dict) -> None:
        self.index = self.values.index(change["new"])


class _Shown(traitlets.Instance):
    """The configuration that a form shows. Reading it raises ConfigError while a field is invalid."""

    def get(self, obj: Any, cls: Any = None) -> Any:
        if problems := getattr(obj, "problems", None):
            raise ConfigError(*next(iter(problems.items())))
        return super().get(obj, cls)


class Form(View):
    """Controls that change a configuration.

    Arguments:
    - `config`: the initial values. The trait of this name has the configuration that the form shows. Reading it raises
      ConfigError while a field is invalid; that field is marked, with the reason beside it, and the other fields keep
      what was entered.
    - `names`: fields to show, in this order (default: all).
    - `choices`: values of fields whose choices the configuration class doesn't know, such as tasks.
    """

    config = _Shown(Config)

    def __init__(
        self, config: Config, names: Sequence[str] | None = None, choices: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        known = settings(type(config))
        self.settings = {name: known[name] for name in (known if names is None else names)}
        for name, values in (choices or {}).items():
            self.settings[name] = replace(known[name], choices=tuple(values))
        self.controls = {name: _control(setting, getattr(config, name)) for name, setting in self.settings.items()}
        self.problems: dict[str, str] = {}
        self._base = config
        self._errors = {name: ipywidgets.HTML() for name in self.controls}
        self._error = ipywidgets.HTML()  # of a field that isn't shown
        rows = [ipywidgets.HBox([control, self._errors[name]]) for name, control in self.controls.items()]
        super().__init__([*rows, self._error], config=config)
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def __repr__(self) -> str:
        return f"<Form: {self.error or self.config}>"

    @property
    def error(self) -> str:
        """The problems with the values shown, by field; empty if there is none."""
        return " ".join(f"{name}: {problem}" for name, problem in self.problems.items())

    def _changed(self, change: Mapping[str, Any]) -> None:
        """Take all values that are valid by themselves; then the configuration may refuse them together."""
        values, problems = {}, {}
        for name in self.controls:
            try:
                values[name] = self._value(name)
                self.settings[name].validate(values[name])
            except ConfigError as error:
                problems[name] = error.problem
        config = None
        if not problems:
            try:
                config = replace(self._base, **values)
            except ConfigError as error:
                problems[error.name] = error.problem
        self.problems = problems
        self._error.value = "".join(error_line(f"{n}: {p}") for n, p in problems.items() if n not in self.controls)
        for name, control in self.controls.items():
            self._errors[name].value = error_line(problems[name]) if name in problems else ""
            control.layout.border_left = f"3px solid {figures.ORANGE}" if name in problems else None
        if config is not None:
            self.config = config

    def _value(self, name: str) -> Any:
        """The value that a control shows. Raises ConfigError for a text that stands for none."""
        control, setting = self.controls[name], self.settings[name]
        if not isinstance(control, ipywidgets.Text):
            return control.value
        text = control.value.strip()
        if not text:
            return () if setting.many else None
        try:
            return tuple(map(setting.type, text.split())) if setting.many else setting.type(text)
        except ValueError:
            raise ConfigError(name, f"expected a number ({setting.type.__name__}), got '{text}'.") from None


def _control(setting: Setting, value: Any) -> Any:
    """The widget for a setting: a text where nothing else fits."""
    common: dict[str, Any] = {
        "description": setting.label, "tooltip": setting.help, "style": {"description_width": "10em"},
    }  # fmt: skip
    at_rest = common | {"continuous_update": False}
    low, high = setting.minimum, setting.maximum
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **common)
    if setting.choices is not None and not setting.many:
        options = [(str(each), each) for each in dict.fromkeys((*setting.choices, value)) if each is not None]
        options += [("none", None)] * setting.optional
        if setting.ordered:
            return Slider(options, value, setting.label, setting.help)
        return ipywidgets.Dropdown(options=options, value=value, **common)
    if setting.type is int and None not in (value, low, high) and high - low < _SLIDER_VALUES:  # type: ignore[operator]
        numbers = range(int(low), int(high) + 1)  # type: ignore[arg-type]
        return Slider([(str(number), number) for number in numbers], value, setting.label, setting.help)
    text = "" if value is None else " ".join(map(str, value)) if setting.many else str(value)
    return ipywidgets.Text(value=text, placeholder=setting.help, **at_rest)


class BitsView(View):
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
        self._bar, self._status, self._chart = ipywidgets.FloatProgress(max=1.0), ipywidgets.HTML(), Chart()
        self._status.value = "Move a slider."
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
            elif worker.error is not None:
                self._status.value = error_line(worker.error)
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
        # "8/8/4 in-hindsight": bits of weights, activations and gradients, and the observer
        names = {c: f"{c.weights}/{c.activations}/{c.gradients} {c.observer}" for c in self.accuracies}
        share = self.accuracies[self._shown]
        self._bar.value = 1.0
        self._status.value = f"{names[self._shown]}: <b>{100 * share:.1f} %</b> of the test pictures"
        rows = {names[config]: [share] for config, share in self.accuracies.items()}
        self._chart.draw(figures.plot_spread(rows, "Test accuracy (%)"))


class _StaleError(Exception):
    """The plan that is being made isn't wanted any more."""


class BudgetView(View):
    """Plans a request within the budget that the slider chooses, on a thread; what another move makes stale is given
    up. Plans are kept in `plans`, by budget; None if no plan fits.

    Arguments:
    - `request`, `device`: the step to plan.
    - `sizes`: the budgets, megabytes (10^6).
    - `count`: what the budget limits: "stored", "peak", "process" or "device" (see compile.search).
    - `costs`: predict the time (default: the device's).
    """

    def __init__(
        self, request: Request, device: Device, sizes: Sequence[int] = (64, 48, 32, 24, 16, 12, 8, 6, 4, 2),
        count: str = "stored", costs: LaunchTimes | None = None,
    ) -> None:  # fmt: skip
        self.request, self.device, self.costs = request, device, costs or LaunchTimes.of(device)
        self.plans: dict[str, Plan | None] = {}
        self._shown: dict[str, str] = {}  # the status of each budget
        self._lock = threading.RLock()
        self._planner: threading.Thread | None = None
        options = [(f"{size} MB", size) for size in sizes]
        self._size = Slider(options, sizes[0], "Budget")
        self._count = ipywidgets.Dropdown(options=list(COUNTS), value=count, description="of")
        self._status, self._chart = ipywidgets.HTML(), Chart()
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

    def wait(self) -> None:
        """Wait until nothing is being planned."""
        while (planner := self._planner) is not None:
            planner.join()

    def _moved(self, change: dict) -> None:
        budget = self.budget
        with self._lock:
            if budget in self.plans:
                self._show(budget)
                return
            self._status.value = f"Planning within {budget} …"
            self._chart.draw(None)  # it is that of another budget
            if self._planner is None:
                self._planner = threading.Thread(target=self._plan, name="edgelearn-planning", daemon=True)
                self._planner.start()

    def _plan(self) -> None:
        """Plan within the chosen budget until that of the moment is planned."""
        while True:
            budget = self.budget
            try:
                self.plans[budget] = plan = make_plan(
                    self.request, self.device, budget, launch_times=self.costs, progress=partial(self._check, budget)
                )
            except _StaleError:
                continue
            except (PlanError, DeviceError) as error:
                self.plans[budget], self._shown[budget] = None, error_line(str(error).splitlines()[0])
            except Exception as error:  # a view has no other place for it
                self.plans[budget], self._shown[budget] = None, error_line(error)
            else:
                found = account(plan)
                self._shown[budget] = (
                    f"<b>{found.stored / 1e6:.2f} MB stored</b>, {found.peak / 1e6:.2f} MB at the peak, "
                    f"{plan.peak_bytes / 1e6:.2f} MB of device memory in all; a step is predicted to take "
                    f"<b>{self.costs.step(plan) * 1e3:.1f} ms</b> ({escape(self.costs.origin)})"
                )
            with self._lock:
                if self.budget in self.plans:
                    self._show(self.budget)
                    self._planner = None
                    return

    def _check(self, budget: str, _progress: str) -> None:
        """Called by the planner for each plan that it tries."""
        if budget != self.budget:
            raise _StaleError

    def _show(self, budget: str) -> None:
        self._status.value, plan = self._shown[budget], self.plans[budget]
        self._chart.draw(plan and plot_timeline(plan, f"Budget: {budget}"))


class ThresholdSlider(Slider):
    """A slider between the lowest and the highest score. Its value is a step, an integer, and not the threshold, which
    may lie between two steps."""

    def __init__(self) -> None:
        self.range, self.shown = (0.0, 0.0), 0
        super().__init__([("", step) for step in range(_STEPS + 1)], 0, "Threshold")

    @property
    def threshold(self) -> float:
        """The threshold that the slider stands at."""
        low, high = self.range
        return low + (high - low) * self.value / _STEPS

    def put(self, low: float, high: float, threshold: float) -> None:
        """Move the slider to a threshold between two scores; `shown` is then its value."""
        self.range = low, high
        step = round(_STEPS * (threshold - low) / (high - low)) if high > low else 0
        self.shown = min(_STEPS, max(0, step))
        self.texts = [f"{low + (high - low) * step / _STEPS:.3f}" for step in range(_STEPS + 1)]
        self.value = self.shown


class RocView(View):
    """A slider for the threshold, with the rates that it leads to and the curves.

    Arguments:
    - `own`: scores of users' own recordings.
    - `impostors`: scores of others, by their name.
    - `accepted`: share of their own that the first threshold accepts (default 0.9).
    """

    def __init__(self, own: np.ndarray, impostors: Mapping[str, np.ndarray], accepted: float = 0.9) -> None:
        self.own, self.impostors = np.asarray(own), impostors
        scores = np.concatenate([self.own, *impostors.values()])
        self.slider, self.rates, self.curves = ThresholdSlider(), ipywidgets.HTML(), Chart()
        self.slider.put(float(scores.min()), float(scores.max()), float(np.quantile(self.own, 1 - accepted)))
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(lambda _: self._draw(), "value")
        self._draw()

    @property
    def threshold(self) -> float:
        """The score from which a recording is accepted."""
        return self.slider.threshold

    def figure(self) -> Figure:
        """Draw the curves, and the threshold on each."""
        figure = figures.canvas(5.5, 4)
        axes = figure.add_subplot()
        thresholds = np.sort(np.concatenate([self.own, *self.impostors.values()]))[::-1]
        right = rates(self.own, thresholds)
        for color, (name, scores) in zip(figures.PALETTE, self.impostors.items(), strict=False):
            axes.plot(rates(scores, thresholds), right, color=color, label=name)
            axes.plot(*(rates(each, np.array([self.threshold])) for each in (scores, self.own)), "o", color=color)
        axes.plot([0, 1], [0, 1], "--", color="0.6", linewidth=1, label="guessing")
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        figures.style(axes, x="others accepted", y="own accepted")
        axes.legend(frameon=False, loc="lower right")
        return figure

    def _draw(self) -> None:
        at = np.array([self.threshold])
        others = ", ".join(f"{rates(scores, at)[0]:.1%} of {name}" for name, scores in self.impostors.items())
        self.rates.value = f"From {self.threshold:.3f} on, {rates(self.own, at)[0]:.1%} of one's own and {others}"
        self.curves.draw(self.figure())


def rates(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of scores at or above each threshold."""
    return 1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
