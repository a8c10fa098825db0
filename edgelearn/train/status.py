"""Where a training stands, and what callbacks see of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelearn.display import Displayed
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer
from edgelearn.ops.compute import LOSS_SCALE
from edgelearn.ops.settings import number

from .schedules import rate_at

Logs = dict[str, float]
GROWTH = 2000  # updates without an overflow, after which the loss scale doubles


@dataclass
class Position:
    """The next step of an epoch, the number of updates so far, and the epoch's sums so far.

    Arguments:
    - `epoch`, `step`: the next step, both counted from 0.
    - `updates`: steps of all epochs so far.
    - `loss`: sum of the losses of the epoch's examples so far; `correct`: right answers; `seen`: examples.
    - `by_output`: these two sums of each of several outputs.
    - `seconds`: time of the epoch's steps so far.
    - `loss_scale`: of compute type fp16; `scaled`: updates since it changed.
    - `learning_rate`: the rate that was set instead of the optimizer's (default None: the optimizer's).
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    loss: float = 0.0
    correct: float = 0
    seen: int = 0
    seconds: float = 0.0
    by_output: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learning_rate: float | None = None
    loss_scale: float = LOSS_SCALE
    scaled: int = 0

    def next_epoch(self) -> Position:
        """The first step of the epoch behind this one."""
        kept = {"learning_rate": self.learning_rate, "loss_scale": self.loss_scale, "scaled": self.scaled}
        return Position(epoch=self.epoch + 1, updates=self.updates, **kept)

    def scale_loss(self, finite: bool) -> None:
        """Halve the loss scale behind an overflow, double it behind `GROWTH` updates without one."""
        self.scaled = self.scaled + 1 if finite else 0
        if not finite:
            self.loss_scale /= 2
        elif self.scaled == GROWTH:
            self.loss_scale, self.scaled = self.loss_scale * 2, 0


class StoppedError(Exception):
    """Raised inside `fit` when `stop_training` is set before the first step."""


@dataclass
class TrainingStatus:
    """Progress of a training, shared by the loop, the model and the callbacks.

    Arguments:
    - `position`: the next step.
    - `epochs`: the number of epochs that the current `fit` ends with.
    - `steps_per_epoch`: the number of mini-batches.
    - `stop_training`: set it to end training after the current step.
    """

    position: Position = field(default_factory=Position)
    epochs: int = 0
    steps_per_epoch: int = 0
    stop_training: bool = False

    def check_stop(self) -> None:
        """Raises StoppedError once `stop_training` is set."""
        if self.stop_training:
            raise StoppedError


class TrainedModel(Displayed, ABC):
    """The interface that callbacks use: a Model, or a Trainer."""

    status: TrainingStatus

    @property
    def position(self) -> Position:
        return self.status.position

    @position.setter
    def position(self, position: Position) -> None:
        self.status.position = position

    @property
    def stop_training(self) -> bool:
        """Set it to True to end training after the current step."""
        return self.status.stop_training

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        self.status.stop_training = stop

    @property
    def epochs(self) -> int:
        """The number of epochs that the current `fit` ends with."""
        return self.status.epochs

    @property
    def steps_done(self) -> int:
        return self.status.position.epoch * self.status.steps_per_epoch + self.status.position.step

    @property
    def steps_total(self) -> int:
        return self.status.epochs * self.status.steps_per_epoch

    @property
    @abstractmethod
    def optimizer(self) -> Optimizer:
        """The rule that updates the weights."""

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. Setting it replaces the optimizer's number or schedule until the model is compiled
        again; checkpoints hold it. Raises PlanError for a rate that can't be."""
        at = self.status.position
        return rate_at(self.optimizer.learning_rate, at.updates) if at.learning_rate is None else at.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.status.position.learning_rate = number("learning_rate", rate, 0)

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """Copies of all weights of the network, float32 by "layer/role"."""

    @weights.setter
    @abstractmethod
    def weights(self, weights: Weights) -> None: ...

    @abstractmethod
    def swap_averages(self) -> None:
        """Exchange the trained weights and their moving averages, which an optimizer with use_ema=True keeps on the
        device: `evaluate`, `predict` and `save` then use the averages, until it is called again. BatchNorm's statistics
        have no average. Raises PlanError if there are none."""

    @abstractmethod
    def state(self) -> tuple[Weights, dict]:
        """All that training needs to continue: (tensors by name, JSON values)."""

    @abstractmethod
    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError if that was another network's or another training."""

    @abstractmethod
    def evaluate(self, x, y) -> Logs:
        """Return the mean loss, the accuracy where the loss has one, and the metrics."""

    @abstractmethod
    def predict(self, x) -> Any:
        """Return the network's output for each example; of several outputs a dictionary by name."""

    @abstractmethod
    def range_records(self) -> Weights:
        """Return the range statistics of quantized tensors by "layer/kind": float32 (16,), see ops.quantize.FIELDS."""

    @abstractmethod
    def reconstruction_errors(self) -> dict[str, float]:
        """Return the errors of the activations that the last step inverted: see Session.reconstruction_errors."""
