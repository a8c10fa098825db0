"""A training on a thread, so that the notebook's kernel stays free, and its live view with buttons."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from html import escape
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

import ipywidgets
from IPython.display import HTML, DisplayHandle, display

from edgelearn.errors import EdgelearnError, RunError
from edgelearn.experiments.experiment import Training, silent
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore, figures
from edgelearn.tables import Table
from edgelearn.train import Callback
from edgelearn.train.callbacks import Progress
from edgelearn.train.state import Logs

from .pictures import Chart, View, duration, show, size, table

_QUEUE_SECONDS = 0.1


class WorkerState(StrEnum):
    """State of a training. It can be started from READY, STOPPED and FAILED."""

    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


class Watcher(Protocol):
    """A view of a training."""

    def update(self) -> None:
        """The training has changed, or another one has begun or ended. Called on a training's thread."""

    def close(self) -> None:
        """Another view watches the training from now on."""


class Worker(Callback):
    """Trains an experiment on a thread, in a new run or in `run` from its checkpoint.

    One training at a time runs in a process: a worker that starts waits until those started before it have ended. A
    process that ends stops and saves its trainings first.

    Arguments:
    - `experiment`: a Training, or a function that makes one, which is called on the thread.
    - `store`: where a new run is created.
    - `run`: the run to continue.
    """

    _workers: ClassVar[WeakSet[Worker]] = WeakSet()
    _newest: ClassVar[Worker | None] = None  # the worker that was started last
    _starting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, experiment: Training | Callable[[], Training], store: RunStore, run: Run | None = None) -> Worker:
        """The experiment's worker, a new one if it has none. Raises RunError if it trains in another run than `run`."""
        for worker in list(cls._workers):
            if worker._source is experiment:
                if run is not None and (worker.run is None or worker.run.id != run.id):
                    raise RunError(f"This experiment already has a run. Load it again to continue {run.id}.")
                return worker
        return cls(experiment, store, run)

    def __init__(self, experiment: Training | Callable[[], Training], store: RunStore, run: Run | None = None) -> None:
        self.store, self.run = store, run
        self._source = experiment
        self.experiment = None if callable(experiment) else experiment
        self.state = WorkerState.READY if run is None else WorkerState.STOPPED
        self.progress = Progress("ready")
        self.rows: list[dict[str, Any]] = [] if run is None else _rows(run)
        self.results: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.watcher: Watcher | None = None
        self._waiting = False  # for trainings that were started before
        self._changing = threading.Lock()
        self._stop, self._ended = threading.Event(), threading.Event()
        self._ended.set()
        Worker._workers.add(self)

    def watch(self, watcher: Watcher) -> None:
        """Set the watcher; the one before is closed."""
        before, self.watcher = self.watcher, watcher
        if before is not None:
            before.close()

    @property
    def stopping(self) -> bool:
        """True between `stop` and the end of the training."""
        return self.state is WorkerState.RUNNING and self._stop.is_set()

    @property
    def other(self) -> Worker | None:
        """The worker that trains now, unless it is this one; None if none does."""
        running = [w for w in list(Worker._workers) if w.state is WorkerState.RUNNING and not w._waiting]
        return next((worker for worker in running if worker is not self), None)

    def start(self) -> None:
        """Start the training, or continue it from the last checkpoint; nothing if it runs or has finished."""
        with self._changing:
            if self.state in (WorkerState.RUNNING, WorkerState.FINISHED):
                return
            with Worker._starting:
                before, Worker._newest = Worker._newest, self
            self._waiting = before is not None and before is not self
            self.state, self.error, self.progress = WorkerState.RUNNING, None, Progress("loading")
            self._stop.clear()
            self._ended.clear()
        threading.Thread(target=self._work, args=(before,), name="edgelearn-training").start()

    def stop(self) -> None:
        """End the training after the current step; the run is saved and can be continued."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the training has ended, at most `timeout` seconds; returns whether it has.

        An interrupt of the kernel stops the training, waits until it is saved, and is raised then; a second one is
        raised at once. (Thread.join, interrupted, takes a living thread for a dead one on Python 3.11.)
        """
        try:
            return self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._ended.wait()
            raise

    # -- callbacks, on the thread --------------------------------------------------------------------------------

    def on_compile(self, done: int, total: int) -> None:
        self._step("compiling kernels", done, total)

    def on_extract(self, done: int, total: int) -> None:
        self._step("extracting features", done, total)

    def on_train_begin(self, logs: Logs) -> None:
        if self.run is not None:
            self.rows = _rows(self.run)
        self._train_step()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._train_step()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.rows = [*(row for row in self.rows if row["epoch"] <= epoch), {"epoch": epoch + 1, **logs}]
        self._train_step()

    def _train_step(self) -> None:
        self._step("training", self.model.steps_done, self.model.steps_total)

    def _step(self, phase: str, done: int, total: int) -> None:
        self.progress = self.progress.next(phase, done, total)
        if self._stop.is_set():
            self.model.stop_training = True
        self._notify()

    def _notify(self) -> None:
        if self.watcher is not None:
            self.watcher.update()

    def _notify_others(self) -> None:
        for worker in list(Worker._workers):
            if worker is not self:
                worker._notify()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self, before: Worker | None) -> None:
        try:
            self._notify()
            if before is not None and before is not self:
                self._queue(before)
            self._notify_others()
            self.results = self._train()
            stopped = WorkerState.READY if self.run is None else WorkerState.STOPPED
            state = stopped if self.results is None else WorkerState.FINISHED
        except BaseException as error:
            self.error, state = error, WorkerState.FAILED
        with self._changing:  # a start waits until everybody knows of the end
            try:
                self.state = state
                self._notify()
            finally:
                self._ended.set()
        with Worker._starting:
            if Worker._newest is self:
                Worker._newest = None  # or it would keep the device's memory
        self._notify_others()

    def _queue(self, before: Worker) -> None:
        """Wait until the training `before` has ended, or this one is stopped."""
        self.progress = Progress("waiting for another training to end")
        self._notify()
        while not self._stop.is_set() and not before._ended.wait(_QUEUE_SECONDS):
            pass
        self._waiting = False
        self.progress = Progress("loading")
        self._notify()

    def _train(self) -> dict[str, Any] | None:
        """The results; None if the training was stopped."""
        if self.experiment is None and not self._stop.is_set() and callable(self._source):
            self.experiment = self._source()
        if self.experiment is None or self._stop.is_set():
            return None
        if self.run is None:
            self.run = self.experiment.create_run(self.store)
        else:
            self.experiment.resume_run(self.run)
        with self.run:
            return self.experiment.run(self.run, [self], silent)


def _rows(run: Run) -> list[dict[str, Any]]:
    """The history; what was measured before training is epoch 0."""
    before = {f"val_{name}": value for name, value in run.record.get("before", {}).items()}
    return ([{"epoch": 0, **before}] if before else []) + run.history()


def _save_before_exit() -> None:
    workers = list(Worker._workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.wait()


# atexit is too late: by then concurrent.futures, which prepares the next examples, takes no more work. It ends itself
# by this function too, and what was registered last is called first.
threading._register_atexit(_save_before_exit)  # pyright: ignore[reportAttributeAccessIssue]


class OtherTraining(ipywidgets.HBox):
    """Shows that another training runs, and stops it. Hidden while none runs.

    A cell that is run again makes a new view; the training that the old one started goes on, and could not be stopped
    otherwise.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._text = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Stop it", icon="stop", layout={"width": "7em"})
        self._button.on_click(self._stop)
        super().__init__([self._text, self._button], layout={"align_items": "center"})
        self.show(None)

    def show(self, worker: Worker | None) -> None:
        """Show the training of `worker`, or hide."""
        self._worker = worker
        self.layout.display = None if worker else "none"
        if worker:
            run = f"run {worker.run.id}" if worker.run else "one that is loading"
            state = "It stops after this step." if worker.stopping else ""
            self._text.value = escape(f"Another training is running: {run}. {state}")
            self._button.disabled = worker.stopping

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
        "planned": (experiment.phases.peak_bytes, figures.BLUE, ""),
        "allocated": (ledger.held, figures.GREEN, f" (peak {size(ledger.peak)})"),
        "process, peak": (peak_resident_bytes(), figures.ORANGE, ""),
    }
    largest = max(nbytes for nbytes, _, _ in bars.values())
    lines = [
        f"<tr><td>{name}</td><td style='width: 12em'><div style='height: 0.9em; border-radius: 2px; "
        f"min-width: 1px; width: {100 * nbytes / largest:.1f}%; background: {color}'></div></td>"
        f"<td style='padding-left: 0.7em'>{size(nbytes)}{note}</td></tr>"
        for name, (nbytes, color, note) in bars.items()
    ]
    return f"<b>Memory</b><table>{''.join(lines)}</table>"


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
    return (
        "<div style='border-left: 4px solid #D55E00; padding: 0.4em 0.8em; white-space: pre-wrap; line-height: 1.4'>"
        f"<b>{type(error).__name__}</b>: {text}</div>"
    )


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
_TEXT_SECONDS = 0.25
_DRAWING_SECONDS = 1.0
_DRAWING_SHARE = 0.1  # of the thread's time at most
_FULL = {"width": "auto"}  # 100 % and margins are more than the view has: a scrollbar


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
        self._next_text = self._next_drawing = 0.0
        self._phase, self._other = "", OtherTraining()
        self._drawn: list[dict[str, Any]] = []
        self._displays: list[DisplayHandle] = []
        self._saved = self.training.state  # that of the snapshot in the notebook
        self._status = ipywidgets.HTML()
        self._buttons = {
            name: ipywidgets.Button(description=name, icon=icon, layout={"width": "7em"})
            for name, icon in (("Start", "play"), ("Stop", "stop"), ("Resume", "step-forward"))
        }
        for name, button in self._buttons.items():
            button.on_click(partial(self._clicked, name))
        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout=_FULL)
        self._curves = Chart()
        self._memory, self._epoch, self._error = (ipywidgets.HTML() for _ in range(3))
        head = ipywidgets.HBox([*self._buttons.values(), self._status], layout={"align_items": "center"})
        foot = ipywidgets.HBox([self._memory, self._epoch], layout={"flex_flow": "row wrap", "grid_gap": "0 3em"})
        super().__init__([head, self._other, self._bar, self._error, self._curves, foot])
        self.training.watch(self)
        self.update(at_once=True)

    def __repr__(self) -> str:
        return f"<TrainingView: {self.status}>"

    @property
    def snapshot(self) -> str:
        parts = [f"<p>{escape(self.status)}</p>", self._error.value, self._curves.value, self._epoch.value]
        return "".join(filter(None, parts))

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
        self._curves.draw(None)  # the cell shows them, in a figure that is saved with the notebook
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
                self._curves.draw(figures.plot_learning_curves(rows))
                self._epoch.value = epoch_html(rows[-1])  # with the curves, which end at the same epoch
                taken = time.monotonic() - now
                self._next_drawing = now + max(_DRAWING_SECONDS, taken / _DRAWING_SHARE)
            self._save()

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

    def _clicked(self, name: str, _button: ipywidgets.Button) -> None:
        if name == "Stop":
            self.training.stop()
            self.update(at_once=True)
        else:
            self.training.start()
