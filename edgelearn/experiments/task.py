"""Trainings of a task: data on both sides of a split, a model, and how it is trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, Self

import numpy as np

from edgelearn.errors import RunError
from edgelearn.lab.runs import Run, figures, wilson_interval
from edgelearn.ops import Optimizer
from edgelearn.train import Callback, Model
from edgelearn.train.phases import Phases
from edgelearn.train.sources import Source

from .config import TrainingConfig
from .experiment import Experiment, Say, process_peak_bytes


@dataclass
class Task:
    """Data on both sides of a split, a model on its device, and how it is trained. `data` and `weights` are what a
    run records of where these come from."""

    model: Model
    train: tuple[Source, np.ndarray]
    test: tuple[Source, np.ndarray]
    optimizer: Callable[[int], Optimizer]  # for so many updates in all
    data: dict
    weights: dict
    batch_size: int
    batchnorm: str = "moving"

    def steps(self, epochs: int) -> int:
        """Updates of so many epochs."""
        return epochs * ceil(len(self.train[1]) / self.batch_size)


@dataclass(frozen=True)
class TaskKind:
    """A task by name: what it is in words, its epochs and its micro-batch unless a configuration has its own, and how
    it is loaded. Loading raises DataError where the data can't be had: nothing else is used instead."""

    title: str
    epochs: int
    micro_batch: int
    load: Callable[[Any], Task]  # of the experiment's configuration


class TaskExperiment(Experiment):
    """The base of jobs that train one of `tasks` in ways that their configurations choose; all else is the same: the
    examples, their order, the first weights."""

    tasks: ClassVar[Mapping[str, TaskKind]]
    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}

    def __init__(self, config: TrainingConfig, task: Task) -> None:
        self.config, self.task, self.model = config, task, task.model
        self.compile(task.optimizer(task.steps(config.epochs)))

    @abstractmethod
    def compile(self, optimizer: Optimizer) -> None:
        """Compile `model` as the configuration says."""

    @classmethod
    def resolve(cls, config: TrainingConfig) -> TrainingConfig:
        """With nothing left open: what a run records. Raises RunError for an unknown task."""
        if config.task not in cls.tasks:
            raise RunError(f"'{config.task}' is no task: choose {', '.join(cls.tasks)}.")
        kind = cls.tasks[config.task]
        return replace(config, epochs=config.epochs or kind.epochs, micro_batch=config.micro_batch or kind.micro_batch)

    @classmethod
    def load(cls, config: TrainingConfig) -> Self:
        config = cls.resolve(config)
        return cls(config, cls.tasks[config.task].load(config))

    @cached_property
    def phases(self) -> Phases:
        return self.model.phases(*self._sizes, examples=(len(self.task.train[1]), len(self.task.test[1])))

    @property
    def _sizes(self) -> tuple[int, int]:
        """Of a mini-batch and a micro-batch."""
        size = min(self.task.batch_size, len(self.task.train[1]))
        return size, min(self.config.micro_batch, size)

    def describe(self) -> dict:
        return {
            "device": self.model.device.facts() | {"reason": self.model.choice.reason},
            "data": self.task.data,
            "weights": self.task.weights,
            "plan": self.phases.to_dict(),
        }

    def sources(self) -> list[str]:
        described = [self.task.data["description"], f"Weights: {self.task.weights['description']}"]
        return [*described, self.tasks[self.config.task].title]

    def fit(self, callbacks: Sequence[Callback]) -> None:
        size, micro_batch = self._sizes
        self.model.fit(
            *self.task.train, size, self.config.epochs, micro_batch=micro_batch, validation_data=self.task.test,
            callbacks=callbacks,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, say: Say) -> dict:
        """The test accuracy after the last epoch, as `fit` has measured it, with memory and traffic of a step."""
        rows, plan, total = run.history(), self.phases["train"], len(self.task.test[1])
        accuracy = rows[-1]["val_accuracy"]
        results = {
            "correct": round(accuracy * total), "total": total, "accuracy": accuracy, "epochs": self.config.epochs,
            "loss": rows[-1]["val_loss"], "seconds": seconds,
            "interval": list(wilson_interval(round(accuracy * total), total)),
            "memory": {"planned": plan.peak_bytes, "allocated": self.model.context.ledger.peak,
                       "process": process_peak_bytes()},
            "traffic": plan.traffic().total(),
        }  # fmt: skip
        figures.plot_learning_curves(rows, run.folder / "curves.png")
        run.finish(results)
        low, high = results["interval"]
        say(f"Test accuracy: {results['correct']}/{total} = {accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})")
        return results
