"""A job's training on a thread of its own, so that the notebook's kernel stays free.

A job has a `kind`, a `config` (with `to_dict`), a `model`, `phases`, `describe()` and `run(run, callbacks, say)`, as
edgelearn.experiments.experiment.Job has them.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from edgelearn.errors import RunError
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback


class WorkerState(StrEnum):
    """Where a training stands. It can be started from READY, STOPPED and FAILED."""

    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """`done` of `total` of a phase that had `first` behind it when it was `started`."""

    phase: str
    done: int = 0
    total: int = 0
    first: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this phase so far; None while that isn't known."""
        if self.done <= self.first:
            return None
        return (time.monotonic() - self.started) / (self.done - self.first) * (self.total - self.done)


class Watcher(Protocol):
    """Is told by `update` that a training has changed, and by `close` that another watches it now."""

    def update(self) -> None: ...

    def close(self) -> None: ...


class Training(Callback):
    """Trains `job` into a new run of `store`, or into `run` from where that stands.

    `job` may be a function that makes the job; it is then called on the thread. One training at a time runs in a
    process: one that starts makes the one before stop first. The watcher is told of every step, on the thread.
    """

    _turn = threading.Lock()
    _current: Training | None = None
    _by_job: ClassVar[weakref.WeakValueDictionary[int, Training]] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, job: Any, store: RunStore, run: Run | None) -> Training:
        """The training of `job`: it has one, however many views are made of it.

        Raises RunError when the job already trains into another run than `run`.
        """
        training = cls._by_job.get(id(job))  # a training holds its job, so that the number stays the job's
        if training is None:
            training = cls._by_job[id(job)] = cls(job, store, run)
        elif run is not None and (training.run is None or training.run.id != run.id):
            raise RunError(f"This job already has a run, so it can't go on with {run.id}. Load the job anew for that.")
        return training

    def __init__(self, job: Any, store: RunStore, run: Run | None = None) -> None:
        self.store, self.run = store, run
        self.job, self._make = (None, job) if callable(job) else (job, None)
        self.state = WorkerState.READY if run is None else WorkerState.STOPPED
        self.progress = Progress("ready")
        self.rows: list[dict[str, Any]] = [] if run is None else _rows(run)
        self.results: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.planned_bytes: int | None = None
        self.watcher: Watcher | None = None
        self._starting = threading.Lock()
        self._stop, self._ended = threading.Event(), threading.Event()
        self._ended.set()

    def watch(self, watcher: Watcher) -> None:
        """Let `watcher` take the place of the one so far."""
        before, self.watcher = self.watcher, watcher
        if before is not None:
            before.close()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop and hasn't yet."""
        return self.state is WorkerState.RUNNING and self._stop.is_set()

    def start(self) -> None:
        """Begin, or go on from the last checkpoint; does nothing while it runs and once it has finished."""
        with self._starting:
            if self.state in (WorkerState.RUNNING, WorkerState.FINISHED):
                return
            self.state, self.error, self.progress = WorkerState.RUNNING, None, Progress("loading")
            self._stop.clear()
            self._ended.clear()
        threading.Thread(target=self._work, name="edgelearn-training").start()

    def stop(self) -> None:
        """Ask it to end after the step that is running; the run is saved and can go on."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; returns whether it has.

        An interrupt of the kernel stops it, waits for it to be saved, and is raised then; a second one is raised at
        once. (An event and not Thread.join: interrupted on Python 3.11, join takes a living thread for a dead one.)
        """
        try:
            return self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._ended.wait()
            raise

    # -- what the model tells, on the thread ---------------------------------------------------------------------

    def on_compile(self, done: int, total: int) -> None:
        self._step("compiling kernels", done, total)

    def on_extract(self, done: int, total: int) -> None:
        self._step("extracting features", done, total)

    def on_train_begin(self, logs: dict[str, float]) -> None:
        self.rows = _rows(self.run)
        self._step("training", self.model.steps_done, self.model.steps_total)

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self._step("training", self.model.steps_done, self.model.steps_total)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.rows = [*(row for row in self.rows if row["epoch"] <= epoch), {"epoch": epoch + 1, **logs}]
        self._step("training", self.model.steps_done, self.model.steps_total)

    def _step(self, phase: str, done: int, total: int) -> None:
        before = self.progress
        if before.phase == phase:
            self.progress = Progress(phase, done, total, before.first, before.started)
        else:
            self.progress = Progress(phase, done, total, done)
        if self._stop.is_set():
            self.model.stop_training = True
        self._tell()

    def _tell(self) -> None:
        if (watcher := self.watcher) is not None:
            watcher.update()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._tell()
            with self._alone():
                self.results = self._train()
            state = WorkerState.STOPPED if self.results is None else WorkerState.FINISHED
        except _StopError:
            state = WorkerState.READY if self.run is None else WorkerState.STOPPED
        except BaseException as error:
            self.error, state = error, WorkerState.FAILED
        with self._starting:  # or a quick restart would be taken for the end of this one
            try:
                self.state = state
                self._tell()
            finally:
                self._ended.set()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        while not Training._turn.acquire(timeout=0.05):
            if self._stop.is_set():
                raise _StopError
            if (other := Training._current) is not None:
                other.stop()
        Training._current = self
        try:
            yield
        finally:
            Training._current = None
            Training._turn.release()

    def _train(self) -> dict[str, Any] | None:
        if self.job is None:
            self.job = self._make()
        if self._stop.is_set():
            raise _StopError
        self.planned_bytes = self.job.phases.peak_bytes
        if self.run is None:
            self.run = self.store.create(self.job.kind, self.job.config.to_dict(), **self.job.describe())
        else:
            self._check_config()
            self.run.resume()
        with self.run as run:
            return self.job.run(run, [self], lambda text: None)

    def _check_config(self) -> None:
        mine = json.loads(json.dumps(self.job.config.to_dict()))
        names = [name for name in mine | self.run.config if mine.get(name) != self.run.config.get(name)]
        if names:
            raise RunError(
                f"Run {self.run.id} was begun with another configuration: {names[0]} is "
                f"{self.run.config.get(names[0])!r} there and {mine.get(names[0])!r} here. Make the job from the "
                f"run's configuration, or start a new run."
            )


class _StopError(BaseException):
    """Ends a training before its first step. Not an Exception: the run has not failed."""


def _rows(run: Run) -> list[dict[str, Any]]:
    """The history, with what was measured before training as epoch 0."""
    before = {f"val_{name}": value for name, value in run.record.get("before", {}).items()}
    return ([{"epoch": 0, **before}] if before else []) + run.history()


def _save_before_exit() -> None:
    trainings = list(Training._by_job.values())
    for training in trainings:
        training.stop()
    for training in trainings:
        training.wait()


# atexit is too late: by then concurrent.futures, which prepares the next examples, takes no more work. It ends itself
# by this function too, and what was registered last is called first.
threading._register_atexit(_save_before_exit)
