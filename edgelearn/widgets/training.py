"""A live view of a training, with buttons."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets
from IPython.display import HTML, display

from edgelearn.errors import RunError
from edgelearn.experiments.experiment import Experiment
from edgelearn.lab.runs import Run, RunStore, figures

from .other_training import OtherTraining
from .run_html import epoch_html, error_html, memory_html, result_rows
from .show import duration, show, table
from .worker import Worker, WorkerState

_POLL_SECONDS = 0.05
_TEXT_SECONDS = 0.25
_DRAWING_SECONDS = 1.0
_DRAWING_SHARE = 0.1  # of the thread's time at most
_FULL = {"width": "auto"}  # 100 % and margins are more than the view has: a scrollbar


class TrainingStoppedError(RunError):
    """A training was stopped before its end. In a notebook its text is shown without a traceback; the cell counts as
    failed, so that "Run All" ends there."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class TrainingView(ipywidgets.VBox):
    """Curves, memory, progress and the last epoch of a training, with buttons to start, stop and resume it.

    A second view of the same experiment shows the same training and replaces the first. While another experiment
    trains, for example one that an earlier run of the cell started, the view shows that and has a button to stop it.

    Arguments:
    - `experiment`: an Experiment, or a function that makes one, such as `lambda: FlowersExperiment.load(config)`.
    - `store`: where the run is created.
    - `run`: the run to continue (default: a new one).

    Raises RunError if the experiment already trains in another run than `run`.
    """

    def __init__(
        self, experiment: Experiment | Callable[[], Experiment], store: RunStore, run: Run | None = None
    ) -> None:
        self.training = Worker.of(experiment, store, run)
        self._updating = threading.Lock()
        self._next_text = self._next_drawing = 0.0
        self._phase, self._other = "", OtherTraining()
        self._drawn: list[dict[str, Any]] = []
        self._status = ipywidgets.HTML()
        self._buttons = {
            name: ipywidgets.Button(description=name, icon=icon, layout={"width": "7em"})
            for name, icon in (("Start", "play"), ("Stop", "stop"), ("Resume", "step-forward"))
        }
        for name, button in self._buttons.items():
            button.on_click(self._stop if name == "Stop" else self._start)
        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout=_FULL)
        self._curves = ipywidgets.Image(format="png", layout={"display": "none", "max_width": "100%"})
        self._memory, self._epoch, self._error = (ipywidgets.HTML() for _ in range(3))
        head = ipywidgets.HBox([*self._buttons.values(), self._status], layout={"align_items": "center"})
        foot = ipywidgets.HBox([self._memory, self._epoch], layout={"flex_flow": "row wrap", "grid_gap": "0 3em"})
        super().__init__([head, self._other, self._bar, self._error, self._curves, foot])
        self.training.watch(self)
        self.update(at_once=True)

    def __repr__(self) -> str:
        return f"<TrainingView: {self.status}>"

    def run(self) -> dict[str, Any]:
        """Train to the end in this cell, from the start or from where the run stands; returns the results.

        Interrupting the kernel stops the training as the button does; the buttons themselves work after the cell, or
        with `run_async`. The cell shows a figure and a table at the end, which are saved with the notebook.

        Raises the error that ended the training, or TrainingStoppedError if it was stopped.
        """
        self.training.start()
        try:
            self.training.wait()
        except KeyboardInterrupt:
            raise self._stopped() from None
        return self._outcome()

    async def run_async(self) -> dict[str, Any]:
        """As `run`, for a cell that awaits it: the buttons work meanwhile (ipykernel 7.4 or newer)."""
        self.training.start()
        try:
            while not self.training.wait(0):
                await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError:  # an interrupt of the kernel
            self.training.stop()
            self.training.wait()
            raise self._stopped() from None
        return self._outcome()

    def _outcome(self) -> dict[str, Any]:
        training = self.training
        if training.error is not None:
            raise training.error
        if training.results is None:
            raise self._stopped()
        self._curves.layout.display = "none"  # the cell shows them, in a figure that is saved with the notebook
        display(show(figures.plot_learning_curves(training.rows)))
        display(self.summary())
        return training.results

    def _stopped(self) -> TrainingStoppedError:
        return TrainingStoppedError(f"{self.status} Press Resume or run this cell again to go on.")

    @property
    def results(self) -> dict[str, Any]:
        """The results that `run` returns. Raises TrainingStoppedError before the training has finished."""
        if self.training.results is None:
            raise TrainingStoppedError(
                f"There are no results yet. {self.status} Finish the training, then run this cell."
            )
        return self.training.results

    def summary(self) -> HTML:
        """The results as a table. Raises TrainingStoppedError before the training has finished."""
        run = self.training.run
        assert self.results and run is not None
        return table(result_rows(run))

    def close(self) -> None:
        """Remove the view; its training stops after the current step and is saved."""
        training = getattr(self, "training", None)  # Python closes a view whose constructor failed
        if training is not None and training.watcher is self:
            training.watcher = None
            training.stop()
        super().close()

    @property
    def status(self) -> str:
        """The state of the training in words."""
        training, progress = self.training, self.training.progress
        run = training.run.id if training.run else ""
        if training.state is WorkerState.READY:
            return "Ready."
        if training.state is WorkerState.FINISHED:
            return f"Finished: run {run}."
        if training.state is WorkerState.RUNNING:
            left = progress.seconds_left
            running = f"{progress} …" if left is None else f"{progress}, {duration(left)} left"
            return "Stopping after this step …" if training.stopping else running
        epoch = f" after epoch {training.rows[-1]['epoch']}" if training.rows else ""
        return f"{training.state.capitalize()}{epoch}." + (f" Run {run} is saved." if run else "")

    # -- drawing; called on the training's thread as well ----------------------------------------------------------

    def update(self, at_once: bool = False) -> None:
        """Show the state of the training, unless that was done a moment ago."""
        with self._updating:
            now, progress, rows = time.monotonic(), self.training.progress, self.training.rows
            phase, complete = progress.phase, progress.done == progress.total
            at_once = at_once or self.training.state is not WorkerState.RUNNING
            self._other.show(self.training.other)
            if complete or at_once or now >= self._next_text or phase != self._phase:
                self._next_text, self._phase = now + _TEXT_SECONDS, phase
                self._write()
            if rows and rows is not self._drawn and (at_once or now >= self._next_drawing):
                self._drawn = rows
                self._curves.value = figures.to_png(figures.plot_learning_curves(rows))
                self._curves.layout.display = None
                self._epoch.value = epoch_html(rows[-1])  # with the curves, which end at the same epoch
                taken = time.monotonic() - now
                self._next_drawing = now + max(_DRAWING_SECONDS, taken / _DRAWING_SHARE)

    def _write(self) -> None:
        training, state = self.training, self.training.state
        begun = training.run is not None
        enabled = {
            "Start": state in (WorkerState.READY, WorkerState.FAILED) and not begun,
            "Stop": state is WorkerState.RUNNING and not training.stopping,
            "Resume": state in (WorkerState.STOPPED, WorkerState.FAILED) and begun,
        }
        for name, button in self._buttons.items():
            button.disabled = not enabled[name]
        self._status.value = escape(self.status)
        self._bar.value = 1.0 if state is WorkerState.FINISHED else training.progress.share
        self._bar.bar_style = {WorkerState.FINISHED: "success", WorkerState.FAILED: "danger"}.get(state, "")
        self._error.value = error_html(training.error) if training.error else ""
        self._memory.value = memory_html(training.experiment) if training.experiment and begun else ""

    def _start(self, _button: ipywidgets.Button) -> None:
        self.training.start()

    def _stop(self, _button: ipywidgets.Button) -> None:
        self.training.stop()
        self.update(at_once=True)
