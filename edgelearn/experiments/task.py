"""Experiments that train one of several tasks: a data set with a split, a network, and how it is trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from edgelearn.extensions import check_name
from edgelearn.lab.runs import Run, figures
from edgelearn.ops import Optimizer
from edgelearn.train import Callback, Model
from edgelearn.train.phases import Phases
from edgelearn.train.sources import Source

from .config import Config, TrainingConfig
from .experiment import Experiment, Log
from .trained import Pictures, save_model

C = TypeVar("C", bound=Config)
T = TypeVar("T", bound=TrainingConfig)


@dataclass
class Task:
    """A loaded task.

    Arguments:
    - `model`: the model on its device.
    - `train`, `test`: (source of examples, int labels).
    - `optimizer`: makes the optimizer for a number of updates.
    - `data`, `weights`: entries of the run's record on where these come from.
    - `batch_size`: examples per update.
    - `batchnorm`: see Model.compile.
    - `pictures`: how pictures become examples, kept with the trained network.
    """

    model: Model
    train: tuple[Source, np.ndarray]
    test: tuple[Source, np.ndarray]
    optimizer: Callable[[int], Optimizer]
    data: dict
    weights: dict
    batch_size: int
    batchnorm: str = "moving"
    pictures: Pictures | None = None

    def steps(self, epochs: int) -> int:
        """Number of updates of a number of epochs."""
        return epochs * ceil(len(self.train[1]) / self.batch_size)


@dataclass(frozen=True)
class TaskKind:
    """A task that can be loaded.

    Arguments:
    - `title`: the task in words.
    - `epochs`, `micro_batch`: used where the configuration has none.
    - `load`: loads the task of a configuration; raises DataError if the data is missing.
    """

    title: str
    epochs: int
    micro_batch: int
    load: Callable[[Any], Task]


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
