"""The live view of a training, with buttons: curves, memory, progress, time left."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

import ipywidgets
from IPython.display import HTML, DisplayHandle, display

from edgelearn.errors import EdgelearnError, RunError
from edgelearn.experiments.experiment import Training
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore, figures
from edgelearn.tables import Table

from .live import LiveTraining
from .pictures import WRAP, View, duration, show, size, table
from .worker import Worker, WorkerState


class OtherTraining(ipywidgets.HBox):
    """Shows that another training runs, and stops it; of one that it can't stop, such as another program's, that this
    one waits for it, with a button to go ahead. Hidden while none runs.

    A cell that is run again makes a new view; the training that the old one started goes on, and could not be stopped
    otherwise.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._text = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Stop it", icon="stop", layout={"width": "7em"})
        self._button.on_click(self._stop)
        self._ahead = ipywidgets.Button(description="Train anyway", icon="play", layout={"width": "10em"})
        self._ahead.on_click(self._go_ahead)
        self._waiting: Worker | None = None
        super().__init__([self._text, self._button, self._ahead], layout=WRAP)
        self.show(None)

    def show(self, worker: Worker | None, waiting: Worker | None = None) -> None:
        """Show the training of `worker`, or that `waiting` waits for the device, or hide."""
        self._worker, self._waiting = worker, waiting if waiting is not None and waiting.waits_for else None
        self.layout.display = None if worker or self._waiting else "none"
        self._button.layout.display = None if worker else "none"
        self._ahead.layout.display = None if self._waiting and not worker else "none"
        if self._waiting and not worker:
            self._text.value = escape(
                f"The device is in use by {self._waiting.waits_for}. This training begins when that one has ended; "
                f"Stop takes it back."
            )
        if worker:
            run = f"run {worker.run.id}" if worker.run else "one that is loading"
            state = "It stops after this step." if worker.stopping else ""
            self._text.value = escape(f"Another training is running: {run}. {state}")
            self._button.disabled = worker.stopping

    def _go_ahead(self, _button: ipywidgets.Button) -> None:
        if self._waiting is not None:
            self._waiting.go_ahead()

    def _stop(self, _button: ipywidgets.Button) -> None:
        if self._worker is not None:
            self._worker.stop()
            self.show(self._worker)


_COLUMNS = {  # of a row of history: the name that readers know, and the format
    "epoch": ("epoch", "{}"), "loss": ("train loss", "{:.4f}"), "accuracy": ("train accuracy", "{:.1%}"),
    "val_loss": ("test loss", "{:.4f}"), "val_accuracy": ("test accuracy", "{:.1%}"), "seconds": ("time", "{:.2f} s"),
}  # fmt: skip


def memory_html(experiment: Training) -> str:
    """Bars for the memory planned, allocated now, and held by the process at its peak."""
    ledger = experiment.model.context.ledger
    bars = {
        "planned": (experiment.phases.peak_bytes, "blue", ""),
        "allocated": (ledger.held, "green", f"peak {size(ledger.peak)}"),
        "process, peak": (peak_resident_bytes(), "orange", ""),
    }
    largest = max(nbytes for nbytes, _, _ in bars.values())
    lines = [
        f"<tr><td>{name}</td><td style='width: 12em'><div class='el-bar' "
        f"style='width: {100 * nbytes / largest:.1f}%; background: var(--el-{color})'></div></td>"
        f"<td class='el-number'>{size(nbytes)}</td><td class='el-quiet'>{note}</td></tr>"
        for name, (nbytes, color, note) in bars.items()
    ]
    return f"<b>Memory</b><table class='el-table'>{''.join(lines)}</table>"


def epoch_html(row: Mapping[str, Any]) -> str:
    """A row of history as a table."""
    row = {**row, "epoch": row["epoch"] or "0 (before training)"}
    rows = [(label, form.format(row[name])) for name, (label, form) in _COLUMNS.items() if row.get(name) is not None]
    return f"<b>Last epoch</b>{Table((), rows).to_html()}"


def error_html(error: BaseException) -> str:
    """An error with its text; with its traceback, too, if it isn't one of edgelearn's own."""
    text = escape(str(error))
    if not isinstance(error, EdgelearnError):
        trace = escape("".join(traceback.format_exception(error)))
        text += f"<details><summary>This was not foreseen: please report the details</summary>{trace}</details>"
    return f"<div class='el-problem'><b class='el-fail'>{type(error).__name__}</b>: {text}</div>"


def result_rows(run: Run) -> list[tuple[str, str]]:
    """The results of a finished run as rows of a table."""
    results, before = run.record["results"], run.record.get("before", {}).get("accuracy")
    correct, total, (low, high), memory = (results[name] for name in ("correct", "total", "interval", "memory"))
    rows = {
        "test accuracy": f"{correct} of {total}: {correct / total:.1%} (95 % interval {low:.1%} to {high:.1%})",
        "before training": "" if before is None else f"{round(before * total)} of {total}: {before:.1%}",
        "test loss": f"{results['loss']:.4f}", "epochs": str(results["epochs"]), "time": duration(results["seconds"]),
        "memory planned": size(memory["planned"]), "memory allocated, peak": size(memory["allocated"]),
        "memory of the process, peak": size(memory["process"]), "device": run.record["device"]["name"], "run": run.id,
    }  # fmt: skip
    return [row for row in rows.items() if row[1]]


_POLL_SECONDS = 0.05
_DRAWING_SHARE = 0.04  # of a core at most


class TrainingStoppedError(RunError):
    """A training was stopped before its end. In a notebook its text is shown without a traceback; the cell counts as
    failed, so that "Run All" ends there."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class TrainingView(View):
    """Curves, memory, progress and the last epoch of a training, with buttons to start, stop and resume it.

    A second view of the same experiment shows the same training and replaces the first. While another experiment
    trains, for example one that an earlier run of the cell started, the view shows that and has a button to stop it.

    Arguments:
    - `experiment`: a Training, or a function that makes one, such as `lambda: FlowersExperiment.load(config)`.
    - `store`: where the run is created.
    - `run`: the run to continue (default: a new one).

    Raises RunError if the experiment already trains in another run than `run`.
    """

    def __init__(self, experiment: Training | Callable[[], Training], store: RunStore, run: Run | None = None) -> None:
        self.training = Worker.of(experiment, store, run)
        self._updating = threading.Lock()
        self._next_drawing = 0.0
        self._other = OtherTraining()
        self._drawn: list[dict[str, Any]] = []
        self._steps_drawn = -1
        self._displays: list[DisplayHandle] = []
        self._saved = self.training.state  # that of the snapshot in the notebook
        self._buttons = {
            name: ipywidgets.Button(description=name, icon=icon, layout={"width": "7em"})
            for name, icon in (("Start", "play"), ("Stop", "stop"), ("Resume", "step-forward"))
        }
        for name, button in self._buttons.items():
            button.on_click(partial(self._clicked, name))
        self._live, self._error = LiveTraining(), ipywidgets.HTML()
        super().__init__([ipywidgets.HBox(list(self._buttons.values())), self._other, self._error, self._live])
        self.training.watch(self)
        self.update(at_once=True)

    def __repr__(self) -> str:
        return f"<TrainingView: {self.status}>"

    @property
    def snapshot(self) -> str:
        rows = self.training.rows
        curves = show(figures.plot_learning_curves(rows)).data if rows else ""
        return "".join(map(str, (f"<p>{escape(self.status)}</p>", self._error.value, curves, *self._live.tables[1:])))

    def _ipython_display_(self) -> None:
        if handle := display(self._repr_mimebundle_(), raw=True, display_id=True):
            self._displays.append(handle)

    def _save(self) -> None:
        """Put a snapshot of a training that has ended into the notebook. (While it runs, that would take the keyboard's
        focus from the buttons.)"""
        state = self.training.state
        if state is not self._saved and state not in (WorkerState.READY, WorkerState.RUNNING):
            for handle in self._displays:
                handle.update(self._repr_mimebundle_(), raw=True)
        self._saved = state

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
        self._live.draw({})  # the cell shows them, in a figure that is saved with the notebook
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
            left = training.seconds_left
            running = f"{progress} …" if left is None else f"{progress}, {duration(left)} left"
            if training.place:
                running = f"{progress}: {training.place} before this one …"
            return "Stopping after this step …" if training.stopping else running
        epoch = f" after epoch {training.rows[-1]['epoch']}" if training.rows else ""
        return f"{training.state.capitalize()}{epoch}." + (f" Run {run} is saved." if run else "")

    # -- drawing; called on threads of the training as well ----------------------------------------------------------

    def update(self, at_once: bool = False) -> None:
        """Show the state of the training; its curves as well, unless their last drawing took so long that they wait."""
        at_once = at_once or self.training.state is not WorkerState.RUNNING
        if not self._updating.acquire(blocking=at_once):
            return  # another thread does it
        try:
            now, begun = time.monotonic(), time.thread_time()
            self._other.show(self.training.other, self.training)
            with self._live.hold_sync():
                drawn = self._draw() if at_once or now >= self._next_drawing else False
                self._write()
            if drawn:
                self._next_drawing = now + (time.thread_time() - begun) / _DRAWING_SHARE
            self._save()
        finally:
            self._updating.release()

    def _draw(self) -> bool:
        """Draw the curves if they have moved; returns whether they have."""
        progress, rows = self.training.progress, self.training.rows
        if not rows or (rows is self._drawn and progress.done == self._steps_drawn):
            return False
        self._drawn, self._steps_drawn = rows, progress.done
        self._live.draw({"": rows}, self.training.steps)
        return True

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
        self._error.value = error_html(training.error) if training.error else ""
        left, live = training.remaining, self._live
        share = left.share if left is not None and state is not WorkerState.READY else training.progress.share
        live.status, live.share = self.status, 1.0 if state is WorkerState.FINISHED else share
        live.outcome = {WorkerState.FINISHED: "success", WorkerState.FAILED: "danger"}.get(state, "")
        memory = memory_html(training.experiment) if training.experiment and begun else ""
        # the epoch is that at which the curves end
        live.tables = [memory, epoch_html(self._drawn[-1])] if self._drawn else [memory]

    def _clicked(self, name: str, _button: ipywidgets.Button) -> None:
        if name == "Stop":
            self.training.stop()
            self.update(at_once=True)
        else:
            self.training.start()
