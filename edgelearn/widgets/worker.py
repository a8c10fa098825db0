"""A training on a thread, so that the notebook's kernel stays free; of several, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.experiments.experiment import Training, seconds_of_config, silent
from edgelearn.experiments.turn import LOOK_SECONDS, Holder, Turn
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback
from edgelearn.train.callbacks import Progress
from edgelearn.train.remaining import Remaining
from edgelearn.train.state import Logs
from edgelearn.train.trainer import Features

BEAT_SECONDS = 0.95  # from one look of the watcher to the next


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
        """About once a second while the training runs, and as its phase changes, or another one begins or ends: steps
        of the training don't wait for it. Called on a thread of the training."""

    def close(self) -> None:
        """Another view watches the training from now on."""


class Worker(Callback):
    """Trains an experiment on a thread, in a new run or in `run` from its checkpoint.

    One training at a time runs in a process: a worker that starts waits in a line until those before it have ended. It
    also waits while another training has the device, such as a command, a job of the home page or a cell, unless
    `go_ahead` is called. A process that ends stops and saves its trainings first. A step adds its figures to curves;
    another thread tells the watcher.

    Arguments:
    - `experiment`: a Training, or a function that makes one, which is called on the thread.
    - `store`: where a new run is created.
    - `run`: the run to continue.
    """

    _workers: ClassVar[WeakSet[Worker]] = WeakSet()
    _line: ClassVar[list[Worker]] = []  # the first one trains, the others wait
    _features: ClassVar[Features] = Features(keep=True)  # of the last training with a frozen prefix, for the next one
    _moved: ClassVar[threading.Condition] = threading.Condition()  # the line has

    @classmethod
    def of(cls, experiment: Training | Callable[[], Training], store: RunStore, run: Run | None = None) -> Worker:
        """The experiment's worker, a new one if it has none. A cell that is run again while it trains finds the worker
        that it made before. Raises RunError if it trains in another run than `run`."""
        recipe = _recipe(experiment)
        for worker in list(cls._workers):
            again = recipe is not None and worker._recipe == recipe and worker.state is WorkerState.RUNNING
            if worker._source is experiment or again:
                if run is not None and (worker.run is None or worker.run.id != run.id):
                    raise RunError(f"This experiment already has a run. Load it again to continue {run.id}.")
                return worker
        return cls(experiment, store, run)

    def __init__(self, experiment: Training | Callable[[], Training], store: RunStore, run: Run | None = None) -> None:
        self.store, self.run = store, run
        self._source, self._recipe = experiment, _recipe(experiment)
        self.experiment = None if callable(experiment) else experiment
        self.state = WorkerState.READY if run is None else WorkerState.STOPPED
        self.progress = Progress("ready")
        self.remaining: Remaining | None = None  # until the experiment is loaded
        self.rows: list[dict[str, Any]] = [] if run is None else _rows(run)
        self.steps: dict[str, Curve] = {}  # of the logs of each step, over epochs
        self.results: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.watcher: Watcher | None = None
        self._expected: float | None = None  # seconds, after an earlier run with the same settings
        self._changing = threading.Lock()
        self.waits_for: Holder | None = None  # another training that isn't in the line
        self._ahead = False
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
        first = next(iter(Worker._line), None)
        return None if first is self else first

    @property
    def place(self) -> int:
        """The number of trainings that this one waits for."""
        line = list(Worker._line)
        return line.index(self) if self in line else 0

    @property
    def seconds_left(self) -> float | None:
        """Until the end, compilation, extraction and tests counted in; None while that is not known."""
        if self.state is not WorkerState.RUNNING or self.place or self.waits_for:
            return None
        return self._expected if self.remaining is None else self.remaining.seconds

    def start(self) -> None:
        """Start the training, or continue it from the last checkpoint; nothing if it runs or has finished."""
        with self._changing:
            if self.state in (WorkerState.RUNNING, WorkerState.FINISHED):
                return
            self.state, self.error, self.progress = WorkerState.RUNNING, None, Progress("loading")
            self._stop.clear()
            self._ended.clear()
            self._ahead = False
            with Worker._moved:
                Worker._line.append(self)
        threading.Thread(target=self._work, name="edgelearn-training").start()
        threading.Thread(target=self._beat, name="edgelearn-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End the training after the current step; the run is saved and can be continued."""
        self._stop.set()
        with Worker._moved:
            Worker._moved.notify_all()

    def go_ahead(self) -> None:
        """Train beside the other program that this one waits for."""
        with Worker._moved:
            self._ahead = True
            Worker._moved.notify_all()

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
        at = self.model.steps_done / max(1, self.model.status.steps_per_epoch)
        for name in ("loss", "accuracy"):
            if name in logs:
                self.steps.setdefault(name, Curve()).add(at, float(logs[name]))
        self._train_step()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        while self.rows and self.rows[-1]["epoch"] > epoch:  # a resumed run trains these again
            self.rows = self.rows[:-1]
        self.rows = [*self.rows, {"epoch": epoch + 1, **logs}]
        self._train_step()

    def on_train_end(self, logs: Logs) -> None:
        if self.model.position.epoch >= self.model.epochs:
            self._step("testing the trained network", 0, 0)

    def _train_step(self) -> None:
        self._step("training", self.model.steps_done, self.model.steps_total)

    def _step(self, phase: str, done: int, total: int) -> None:
        before, self.progress = self.progress.phase, Progress(phase, done, total)
        if self._stop.is_set():
            self.model.stop_training = True
        if phase != before:
            self._notify()

    def _notify(self) -> None:
        if self.watcher is not None:
            self.watcher.update()

    def _notify_others(self) -> None:
        for worker in list(Worker._workers):
            if worker is not self:
                worker._notify()

    # -- the threads ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Let the watcher show how far the training is."""
        while not self._ended.wait(BEAT_SECONDS):
            self._notify()

    def _work(self) -> None:
        try:
            self._notify()
            self._queue()
            self._notify_others()
            self.results = self._train()
            stopped = WorkerState.READY if self.run is None else WorkerState.STOPPED
            state = stopped if self.results is None else WorkerState.FINISHED
        except BaseException as error:
            self.error, state = error, WorkerState.FAILED
        with Worker._moved:
            Worker._line.remove(self)
            Worker._moved.notify_all()
        with self._changing:  # a start waits until everybody knows of the end
            try:
                self.state = state
                self._notify()
            finally:
                self._ended.set()
        self._notify_others()

    def _queue(self) -> None:
        """Wait until this worker is the first in the line, or is stopped."""
        with Worker._moved:
            first = Worker._line[0] is self
        if not first:
            self.progress = Progress("waiting for another training to end")
            self._notify()
            with Worker._moved:
                Worker._moved.wait_for(lambda: self._stop.is_set() or Worker._line[0] is self)
        self.progress = Progress("loading")
        self._notify()

    def _wait_for(self, turn: Turn) -> None:
        """Take the turn, once it is free; without it after `stop` or `go_ahead`."""
        while not self._ahead and not self._stop.is_set() and (holder := turn.take()):
            self.waits_for, self.progress = holder, Progress(f"waiting for {holder}")
            self._notify()
            with Worker._moved:
                Worker._moved.wait(LOOK_SECONDS)
        self.waits_for, self.progress = None, Progress("loading")
        self._notify()

    def _train(self) -> dict[str, Any] | None:
        """The results; None if the training was stopped."""
        configs = _configs(self._source)
        self._expected = seconds_of_config(self.store, configs[0]) if len(configs) == 1 and self.run is None else None
        if self.experiment is None and not self._stop.is_set() and callable(self._source):
            self.experiment = self._source()
        if self.experiment is None or self._stop.is_set():
            return None
        turn = self.experiment.turn
        try:
            self._wait_for(turn)
            return None if self._stop.is_set() else self._train_now(self.experiment)
        finally:
            turn.release()

    def _train_now(self, experiment: Training) -> dict[str, Any] | None:
        experiment.model.features = Worker._features
        self.remaining = experiment.remaining(self.store)
        if self.run is None:
            self.run = experiment.create_run(self.store)
        else:
            experiment.resume_run(self.run)
        with self.run:
            return experiment.run(self.run, [self.remaining, self], silent)


def _recipe(source: Any) -> Any:
    """A value that two functions share if they load the same training: of a lambda its code, and the configurations
    that it reads. None for a training that is loaded."""
    if isinstance(source, partial):
        return source.func, source.args, tuple(sorted(source.keywords.items()))
    if not isinstance(source, FunctionType):
        return None
    return source.__code__.co_filename, source.__code__, _configs(source)


def _configs(source: Any) -> tuple[Config, ...]:
    """The configurations that a function reads, or that a partial one is given."""
    read: list[Any] = []
    if isinstance(source, partial):
        read = [*source.args, *source.keywords.values()]
    elif isinstance(source, FunctionType):
        named = [source.__globals__.get(name) for name in source.__code__.co_names]
        read = named + [cell.cell_contents for cell in source.__closure__ or ()]
    configs = [value if isinstance(value, Config) else getattr(value, "config", None) for value in read]
    return tuple(each for each in configs if isinstance(each, Config))


class Curve:
    """Values over steps, in at most `most` points: neighbours are averaged where there are more."""

    def __init__(self, most: int = 400) -> None:
        self.points: list[tuple[float, float]] = []
        self._most, self._width, self._open = most, 1, list[float]()

    def add(self, x: float, y: float) -> None:
        """Add the value `y` at `x`."""
        self._open.append(y)
        if len(self._open) == self._width:
            self.points.append((x, sum(self._open) / self._width))
            self._open.clear()
        if len(self.points) >= self._most:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(later, (a + b) / 2) for (_, a), (later, b) in pairs]
            self._width *= 2


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
