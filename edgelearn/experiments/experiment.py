"""A training that is kept in a run folder: start, interrupt, resume, finish. Base class of the experiments."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar, Generic, Self, TypeVar

from edgelearn.errors import RunError
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore, wilson_interval
from edgelearn.lab.runs.store import rescue
from edgelearn.train import Callback, Model, TrainedModel
from edgelearn.train.control import on_interrupt
from edgelearn.train.model import Phases
from edgelearn.train.state import Logs
from edgelearn.tuned import find

from .config import Config


class Recorder(Callback):
    """Writes a row of history and a checkpoint after each epoch, and what was measured before training.

    Arguments:
    - `run`: the run.
    - `model`: the model that is trained.
    - `command`: the command that resumes it.
    """

    def __init__(self, run: Run, model: TrainedModel, command: str) -> None:
        self.run, self.model, self.command = run, model, command
        self._rows = run.history()

    def on_train_begin(self, logs: Logs) -> None:
        if logs:
            with self.rescuing():
                self.run.update(before={k.removeprefix("val_"): v for k, v in logs.items()})

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        row = {"epoch": epoch + 1, **logs}
        self._rows = [each for each in self._rows if each["epoch"] <= epoch] + [row]
        with self.rescuing():
            self.run.append_epoch(row)
            self.run.save_checkpoint(*self.model.state())

    def save(self) -> None:
        """Write a checkpoint."""
        with self.rescuing():
            self.run.save_checkpoint(*self.model.state())

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """If the run can't be written in the block, keep what is in memory elsewhere; the RunError then says where."""
        try:
            yield
        except RunError as error:
            folder = rescue(self.run, self._rows, *self.model.state())
            if folder is None:
                raise RunError(f"{error} What is in memory could not be saved anywhere else either.") from error
            raise RunError(
                f"{error} What was in memory is saved in {folder}. Continue with: {self.command} --resume "
                f"{self.run.id} --runs {folder.parent}"
            ) from error


Log = Callable[[str], None]
C = TypeVar("C", bound=Config)


def silent(line: str) -> None:
    """A log that drops every line."""


class Experiment(ABC, Generic[C]):
    """A training of one configuration.

    A subclass loads data and model, trains them and computes the results; this class keeps the run folder.

    Class attributes:
    - `kind`: the kind of its runs.
    - `command`: the command that resumes them.
    - `config_type`: its configuration class.
    - `same`: entries of the run's record, and their keys, that must not have changed when a run is resumed.
    - `apart`: settings that don't change a training's result.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    config_type: ClassVar[type]
    same: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    apart: ClassVar[tuple[str, ...]] = ("data", "download", "device")
    config: C
    model: Model

    @classmethod
    def resolve(cls, config: C) -> C:
        """The configuration with values where it leaves them to the experiment (default: as it is)."""
        return config

    @classmethod
    def training(cls, config: C) -> str:
        """A text that configurations with the same training share."""
        settings = cls.resolve(config).to_dict()
        return json.dumps({name: value for name, value in settings.items() if name not in cls.apart}, sort_keys=True)

    @classmethod
    @abstractmethod
    def load(cls, config: C) -> Self:
        """Load the data and the model of a configuration."""

    @cached_property
    @abstractmethod
    def phases(self) -> Phases:
        """The memory plans of everything that runs on the device."""

    @abstractmethod
    def origins(self) -> dict:
        """Entries of the run's record on where data and weights come from."""

    @abstractmethod
    def sources(self) -> list[str]:
        """The same as lines of text."""

    @abstractmethod
    def fit(self, callbacks: Sequence[Callback]) -> None:
        """Train silently from the model's position until all epochs are done; a callback may show progress."""

    @abstractmethod
    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        """Test the model, write results and figures, finish the run and return the results."""

    def describe(self) -> dict:
        """Entries of the run's record next to the configuration."""
        device = self.model.device.facts() | {"reason": self.model.choice.reason}
        return {"device": device, **self.origins(), "plan": self.phases.to_dict()}

    def log_setup(self, log: Log) -> None:
        """Log data, device, network and memory plan."""
        for line in self.sources():
            log(line)
        device = self.model.device
        log(f"Device: {device.id} (driver {device.driver}), {self.model.choice.reason}")
        log(f"  {find(device)}")
        for note in device.notes:
            log(f"  note: {note}")
        log(self.model.summary())
        log(str(self.phases))

    def memory(self) -> dict[str, int]:
        """Bytes: the planned and the allocated peak on the device, and the peak of this process."""
        return {
            "planned": self.phases.peak_bytes,
            "allocated": self.model.context.ledger.peak,
            "process": peak_resident_bytes(),
        }

    def results(self, correct: int, total: int, loss: float, seconds: float) -> dict:
        """The results of a classifier: `correct` of `total` test examples, with a 95 % Wilson interval."""
        return {
            "correct": correct, "total": total, "accuracy": correct / total, "epochs": self.epochs, "loss": loss,
            "seconds": seconds, "interval": list(wilson_interval(correct, total)), "memory": self.memory(),
        }  # fmt: skip

    @property
    def epochs(self) -> int:
        """Epochs of the whole training."""
        return self.config.to_dict()["epochs"]

    @property
    def trained(self) -> TrainedModel:
        """The object that is trained: the model, or one that trains it in another way."""
        return self.model

    @property
    def finished(self) -> bool:
        """True once all epochs are done."""
        return self.trained.position.epoch >= self.epochs

    @classmethod
    def start(cls, config: C, store: RunStore, callbacks: Sequence[Callback], log: Log = print) -> dict | None:
        """Train `config` in a new run of `store`; returns the results, or None after an interrupt."""
        experiment = cls.load(config)
        experiment.log_setup(log)
        with experiment.create_run(store) as run:
            log(f"Run {run.id}")
            return experiment.run(run, callbacks, log)

    @classmethod
    def resume(cls, name: str, store: RunStore, callbacks: Sequence[Callback], log: Log = print) -> dict | None:
        """Continue an interrupted or failed run; returns the results, or None after an interrupt.

        `name` is the run's id or the start of it. Raises RunError if the run can't be continued.
        """
        run = store.open(name)
        if run.record["kind"] != cls.kind:
            raise RunError(
                f"{run.id} is a run of '{run.record['kind']}', not of {cls.kind}: resume it with its own command."
            )
        with run.resume():
            experiment = cls.load(cls.config_type.from_dict(run.config))
            experiment.log_setup(log)
            log(f"Run {run.id}, continued")
            return experiment.run(run, callbacks, log)

    def create_run(self, store: RunStore) -> Run:
        """Create a run of this configuration."""
        return store.create(self.kind, self.config.to_dict(), **self.describe())

    def resume_run(self, run: Run) -> None:
        """Open a run of this configuration to continue it. Raises RunError if it is of another configuration."""
        for name, value in self.config_type.from_dict(run.config).to_dict().items():
            if value != (own := self.config.to_dict()[name]):
                raise RunError(
                    f"Run {run.id} has another configuration: {name} is {value!r} there and {own!r} here. Load the "
                    f"experiment with the run's configuration, or start a new run."
                )
        run.resume()

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict | None:
        """Train in `run`, from its checkpoint if it has one; returns the results, or None after an interrupt.

        Raises RunError if the run began with other data or weights.
        """
        recorder = Recorder(run, self.trained, self.command)
        start = time.perf_counter()
        earlier = float(run.record.get("seconds", 0.0))
        if run.has_checkpoint():
            self._check_same(run)
            self.trained.restore(*run.load_checkpoint())

        def stop() -> None:
            self.trained.stop_training = True

        advice = f"Continue with: {self.command} --resume {run.id}"
        with on_interrupt(stop):
            if not self.finished:
                self.fit([recorder, *callbacks])
            seconds = earlier + time.perf_counter() - start
            with recorder.rescuing():
                run.update(seconds=seconds)
            if not self.finished:
                recorder.save()
                run.close()
                log(f"Stopped at a step boundary and saved. {advice}")
                return None
        try:
            with recorder.rescuing():
                return self.finish(run, seconds, log)
        except KeyboardInterrupt:
            log(f"Trained and saved, but the test is not complete. {advice}")
            raise

    def _check_same(self, run: Run) -> None:
        now = self.describe()
        for entry, keys in self.same.items():
            before = run.record.get(entry)
            if not isinstance(before, dict):
                raise RunError(f"{run.id} doesn't say which {entry} it began with: its record was changed. Start anew.")
            for key in keys:
                if now[entry][key] != before.get(key):
                    raise RunError(
                        f"{run.id} began with other {entry}: {key} was {before.get(key)} and is now {now[entry][key]}. "
                        f"It began with: {before.get('description')} Make that available again, or start a new run."
                    )
