"""Training on a thread, so that the notebook's kernel stays free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from edgelearn.errors import RunError
from edgelearn.experiments.experiment import Experiment, silent
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback
from edgelearn.train.callbacks.remaining import Progress
from edgelearn.train.status import Logs

_POLL_SECONDS = 0.1


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
    - `experiment`: an Experiment, or a function that makes one, which is called on the thread.
    - `store`: where a new run is created.
    - `run`: the run to continue.
    """

    _workers: ClassVar[WeakSet[Worker]] = WeakSet()
    _newest: ClassVar[Worker | None] = None  # the worker that was started last
    _starting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, experiment: Experiment | Callable[[], Experiment], store: RunStore, run: Run | None = None) -> Worker:
        """The experiment's worker, a new one if it has none. Raises RunError if it trains in another run than `run`."""
        for worker in list(cls._workers):
            if worker._source is experiment:
                if run is not None and (worker.run is None or worker.run.id != run.id):
                    raise RunError(f"This experiment already has a run. Load it again to continue {run.id}.")
                return worker
        return cls(experiment, store, run)

    def __init__(
        self, experiment: Experiment | Callable[[], Experiment], store: RunStore, run: Run | None = None
    ) -> None:
        self.store, self.run = store, run
        self._source = experiment
        self.experiment = experiment if isinstance(experiment, Experiment) else None
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
        while not self._stop.is_set() and not before._ended.wait(_POLL_SECONDS):
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
