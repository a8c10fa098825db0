"""Experiments as classes."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np

from edgelearn.errors import RunError
from edgelearn.extensions import check_name
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore, figures, wilson_interval
from edgelearn.ops import Optimizer
from edgelearn.train import Callback, Model, TrainedModel
from edgelearn.train.control import on_interrupt
from edgelearn.train.model import Phases
from edgelearn.tuned import find

from .config import Config, TrainingConfig
from .experiment import Log, Recorder
from .tasks import Task, TaskKind, save_model

C = TypeVar("C", bound=Config)
T = TypeVar("T", bound=TrainingConfig)


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


class TaskTraining(Experiment[C]):
    """A training of a task that was made already.

    Arguments:
    - `config`: settings of the run.
    - `task`: the data, model and optimizer.
    """

    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}

    def __init__(self, config: C, task: Task) -> None:
        self.config, self.task, self.model = config, task, task.model
        self.compile(task.optimizer(task.steps(self.epochs)))

    @abstractmethod
    def compile(self, optimizer: Optimizer) -> None:
        """Compile `model` as the configuration says."""

    @property
    @abstractmethod
    def micro_batch(self) -> int | None:
        """Examples that are on the device at once; None for a whole mini-batch."""

    @cached_property
    def phases(self) -> Phases:
        return self.model.phases(*self._sizes, examples=(len(self.task.train[1]), len(self.task.test[1])))

    @property
    def _sizes(self) -> tuple[int, int]:
        """Examples of a mini-batch and of a micro-batch."""
        size = min(self.task.batch_size, len(self.task.train[1]))
        return size, min(self.micro_batch or size, size)

    def origins(self) -> dict:
        return {"data": self.task.data, "weights": self.task.weights}

    def fit(self, callbacks: Sequence[Callback]) -> None:
        size, micro_batch = self._sizes
        self.model.fit(
            *self.task.train, size, self.epochs, micro_batch=micro_batch, validation_data=self.task.test,
            callbacks=callbacks, verbose=0,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        """Keep the network; the test accuracy is the last epoch's, as `fit` measured it."""
        rows, labels = run.history(), self.task.test[1]
        last, total = rows[-1], len(labels)
        if "val_accuracy" in last and np.ndim(labels) == 1:
            results = self.results(round(last["val_accuracy"] * total), total, last["val_loss"], seconds)
        else:  # nothing is right or wrong, or not once an example
            results = {"epochs": self.epochs, "seconds": seconds, "memory": self.memory()}
        results = {name.removeprefix("val_"): v for name, v in last.items() if name.startswith("val_")} | results
        results["traffic"] = self.phases["train"].traffic().total()
        save_model(run, self.model, self.task.data["classes"], self.task.pictures)
        figures.plot_learning_curves(rows, run.folder / "curves.png")
        run.finish(results)
        if "interval" in results:
            low, high = results["interval"]
            accuracy = f"{results['correct']}/{total} = {results['accuracy']:.2%}"
            log(f"Test accuracy: {accuracy} (95 % interval {low:.2%} to {high:.2%})")
        return results


class TaskExperiment(TaskTraining[T]):
    """Base of experiments that train one of `tasks` in different ways. Everything else is the same: the examples, their
    order, the initial weights.

    Arguments:
    - `config`: settings of the run.
    - `task`: the data, model and optimizer that they name.
    """

    tasks: ClassVar[Mapping[str, TaskKind]]

    @property
    def micro_batch(self) -> int | None:
        return self.config.micro_batch

    @classmethod
    def resolve(cls, config: T) -> T:
        """Fill in the task's values where the configuration has None. Raises UsageError for an unknown task."""
        check_name(config.task, cls.tasks, "task")
        kind = cls.tasks[config.task]
        return replace(config, epochs=config.epochs or kind.epochs, micro_batch=config.micro_batch or kind.micro_batch)

    @classmethod
    def load(cls, config: T) -> Self:
        config = cls.resolve(config)
        return cls(config, cls.tasks[config.task].load(config))

    def sources(self) -> list[str]:
        title = self.tasks[self.config.task].title
        return [self.task.data["description"], f"Weights: {self.task.weights['description']}", title]
