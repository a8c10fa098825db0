"""Views with controls: precision, memory budgets, thresholds."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from math import ceil, log10
from typing import TYPE_CHECKING

import ipywidgets
import numpy as np

from edgelearn.compile import LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.search import COUNTS
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.experiments.memory_plans import plot_timeline
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment
from edgelearn.lab.runs import RunStore, figures

from .forms import WORKING, Form, Slider
from .pictures import WRAP, Chart, View, duration, error_line
from .worker import Worker, WorkerState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 1000  # of a threshold's slider


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
        super().__init__([self._form, ipywidgets.HBox([self._bar, self._status], layout=WRAP), self._chart])
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
        with self._lock:  # the training's thread and its heartbeat
            worker = self._worker
            if worker is None:
                return
            left = worker.seconds_left
            more = f", {duration(left)} left" if left is not None else " …"
            self._bar.value, self._status.value = worker.progress.share, f"{worker.progress}{more}"
            if worker.state is not WorkerState.RUNNING:
                if worker.results is not None:
                    self.accuracies[self._shown] = worker.results["accuracy"]
                    self._draw()
                elif worker.error is not None:
                    self._status.value = error_line(worker.error)
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
        super().__init__([ipywidgets.HBox([self._size, self._count], layout=WRAP), self._status, self._chart])
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
            self._status.value = f"Planning within {budget} … {WORKING}"
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
        self.range, width = (low, high), (high - low) / _STEPS
        step = round((threshold - low) / width) if width > 0 else 0
        self.shown = min(_STEPS, max(0, step))
        digits = max(3, ceil(-log10(width))) if width > 0 else 3  # so that no two steps are announced alike
        self.texts = [f"{low + width * step:.{digits}f}" for step in range(_STEPS + 1)]
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
        figures.style(axes, x="Others accepted", y="Own accepted")
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
