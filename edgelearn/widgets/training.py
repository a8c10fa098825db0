"""A live view of a training, with buttons."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets
from IPython.display import HTML, display

from edgelearn.errors import EdgelearnError, RunError
from edgelearn.experiments.experiment import Experiment, process_peak_bytes
from edgelearn.lab.runs import Run, RunStore, figures

from .show import duration, show, size, table, table_html
from .worker import Training, WorkerState

_POLL_SECONDS = 0.05
_TEXT_SECONDS = 0.25
_DRAWING_SECONDS = 1.0
_DRAWING_SHARE = 0.1  # of the thread's time at most
_FULL = {"width": "100%"}
_COLUMNS = {  # of a row of history, with the names that readers know
    "epoch": "epoch", "loss": "train loss", "accuracy": "train accuracy", "val_loss": "test loss",
    "val_accuracy": "test accuracy", "seconds": "time",
}  # fmt: skip


class TrainingView(ipywidgets.VBox):
    """Curves, memory, progress and the last epoch of a training, with buttons to start, stop and resume it.

    `job` is an experiment or a function that makes one, as FlowersExperiment.load does; it is trained into a new run of
    `store`, or with `run` into that one from where it stands. A second view of the same experiment shows the same
    training, and takes the place of the first. Training is on a thread, which changes this widget and does nothing else
    to the notebook.

    Raises RunError when the job already has another run than `run`.
    """

    training: Training | None = None  # where the constructor fails, Python closes a view that has none

    def __init__(self, job: Experiment | Callable[[], Experiment], store: RunStore, run: Run | None = None) -> None:
        self.training = Training.of(job, store, run)
        self._drawing = threading.Lock()
        self._next_text = self._next_drawing = 0.0
        self._phase = ""
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
        super().__init__([head, self._bar, self._error, self._curves, foot])
        self.training.watch(self)
        self.update(at_once=True)

    def __repr__(self) -> str:
        return f"<TrainingView: {self._state_text()}>"

    def run(self) -> dict[str, Any]:
        """Train from start to end, or to the end of what was begun, in this cell; returns the results.

        Interrupting the kernel stops the training as the button does; buttons themselves work only after the cell,
        or in it with `run_async`. What the cell shows at the end is a figure and a table without widgets, which are
        saved with the notebook. Raises the error that ended the training, or RunError when it was stopped.
        """
        self.training.start()
        self.training.wait()
        return self._outcome()

    async def run_async(self) -> dict[str, Any]:
        """As `run`, for a cell that awaits it: then the kernel (ipykernel from 7.4 on) hears the buttons meanwhile."""
        self.training.start()
        try:
            while not self.training.wait(0):
                await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError:  # how an interrupt of the kernel comes here
            self.training.stop()
            self.training.wait()
            raise
        return self._outcome()

    def _outcome(self) -> dict[str, Any]:
        training = self.training
        if training.error is not None:
            raise training.error
        if training.state is not WorkerState.FINISHED:
            raise RunError(f"{self._state_text()} Press Resume or run this cell again to go on.")
        display(show(figures.plot_learning_curves(training.rows)))
        display(self.summary())
        return training.results

    def summary(self) -> HTML:
        """The results as a table. Raises RunError while there are none."""
        if self.training.results is None:
            raise RunError(f"There are no results yet. {self._state_text()}")
        return table(_results(self.training.run, self.training.results))

    def close(self) -> None:
        """Take the view away; a training that it shows stops after its step and is saved."""
        if self.training is not None and self.training.watcher is self:
            self.training.watcher = None
            self.training.stop()
        super().close()

    # -- drawing; on the training's thread as well ---------------------------------------------------------------

    def update(self, at_once: bool = False) -> None:
        """Show how the training stands, unless that was done a moment ago."""
        with self._drawing:
            now, phase = time.monotonic(), self.training.progress.phase
            at_once = at_once or self.training.state is not WorkerState.RUNNING
            if at_once or now >= self._next_text or phase != self._phase:
                self._next_text, self._phase = now + _TEXT_SECONDS, phase
                self._write()
            rows = self.training.rows
            if rows and rows is not self._drawn and (at_once or now >= self._next_drawing):
                self._drawn = rows
                self._curves.value = figures.to_png(figures.plot_learning_curves(rows))
                self._curves.layout.display = None
                taken = time.monotonic() - now
                self._next_drawing = now + max(_DRAWING_SECONDS, taken / _DRAWING_SHARE)

    def _write(self) -> None:
        training = self.training
        state, progress = training.state, training.progress
        begun = training.run is not None
        usable = {
            "Start": state in (WorkerState.READY, WorkerState.FAILED) and not begun,
            "Stop": state is WorkerState.RUNNING and not training.stopping,
            "Resume": state in (WorkerState.STOPPED, WorkerState.FAILED) and begun,
        }
        for name, button in self._buttons.items():
            button.disabled = not usable[name]
        self._status.value = escape(self._state_text())
        self._bar.value = progress.done / progress.total if progress.total else float(state is WorkerState.FINISHED)
        self._bar.bar_style = {WorkerState.FINISHED: "success", WorkerState.FAILED: "danger"}.get(state, "")
        self._error.value = _error_html(training.error) if training.error else ""
        self._memory.value = self._memory_html()
        self._epoch.value = _epoch_html(training.rows[-1]) if training.rows else ""

    def _state_text(self) -> str:
        training, progress = self.training, self.training.progress
        if training.state is WorkerState.READY:
            return "Ready."
        if training.state is WorkerState.FINISHED:
            return f"Finished: run {training.run.id}."
        if training.state is WorkerState.RUNNING:
            if training.stopping:
                return "Stopping after this step …"
            text = progress.phase.capitalize()
            if progress.total:
                text += f": {progress.done:,} of {progress.total:,} {_UNITS.get(progress.phase, '')}".rstrip()
            left = progress.seconds_left
            return f"{text}, {duration(left)} left" if left is not None else f"{text} …"
        run = f" Run {training.run.id} is saved." if training.run else ""
        where = f" after epoch {training.rows[-1]['epoch']}" if training.rows else ""
        return f"{'Stopped' if training.state is WorkerState.STOPPED else 'Failed'}{where}.{run}"

    def _memory_html(self) -> str:
        if self.training.planned_bytes is None:
            return ""
        ledger = self.training.job.model.context.ledger
        bars = {
            "planned": (self.training.planned_bytes, figures.BLUE, ""),
            "allocated": (ledger.held, figures.GREEN, f" (peak {size(ledger.peak)})"),
            "process, peak": (process_peak_bytes(), figures.ORANGE, ""),
        }
        largest = max(nbytes for nbytes, _, _ in bars.values())
        lines = [
            f"<tr><td>{name}</td><td style='width: 12em'><div style='height: 0.9em; border-radius: 2px; "
            f"min-width: 1px; width: {100 * nbytes / largest:.1f}%; background: {color}'></div></td>"
            f"<td style='padding-left: 0.7em'>{size(nbytes)}{note}</td></tr>"
            for name, (nbytes, color, note) in bars.items()
        ]
        return f"<b>Memory</b><table>{''.join(lines)}</table>"

    def _start(self, _button: ipywidgets.Button) -> None:
        self.training.start()

    def _stop(self, _button: ipywidgets.Button) -> None:
        self.training.stop()
        self.update(at_once=True)


_UNITS = {"training": "steps", "extracting features": "pictures", "compiling kernels": "kernels"}


def _epoch_html(row: Mapping[str, Any]) -> str:
    rows = [(label, _value(name, row[name])) for name, label in _COLUMNS.items() if row.get(name) is not None]
    return f"<b>Last epoch</b>{table_html(rows)}"


def _value(name: str, value: Any) -> str:
    if name == "epoch":
        return str(value) if value else "0 (before training)"
    if name == "seconds":
        return f"{value:.2f} s"
    return f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4f}"


def _error_html(error: BaseException) -> str:
    text = escape(str(error))
    if not isinstance(error, EdgelearnError):
        trace = escape("".join(traceback.format_exception(error)))
        text += f"<details><summary>This was not foreseen: please report the details</summary>{trace}</details>"
    return (
        "<div style='border-left: 4px solid #D55E00; padding: 0.4em 0.8em; white-space: pre-wrap; line-height: 1.4'>"
        f"<b>{type(error).__name__}</b>: {text}</div>"
    )


def _results(run: Run, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    low, high = results["interval"]
    correct, total, before = results["correct"], results["total"], run.record.get("before", {}).get("accuracy")
    rows = [("test accuracy", f"{correct} of {total}: {correct / total:.1%} (95 % interval {low:.1%} to {high:.1%})")]
    if before is not None:
        rows.append(("before training", f"{round(before * total)} of {total}: {before:.1%}"))
    memory = results["memory"]
    return [
        *rows,
        ("test loss", f"{results['loss']:.4f}"),
        ("epochs", str(results["epochs"])),
        ("time", duration(results["seconds"])),
        ("memory planned", size(memory["planned"])),
        ("memory allocated, peak", size(memory["allocated"])),
        ("memory of the process, peak", size(memory["process"])),
        ("device", run.record["device"]["name"]),
        ("run", run.id),
    ]
