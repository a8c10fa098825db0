"""Learning rates that follow the training."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from edgelearn.errors import PlanError
from edgelearn.ops.settings import number, whole
from edgelearn.train.status import Logs

from .base import Callback
from .monitor import Monitor


class ReduceLROnPlateau(Monitor):
    """Lower the learning rate when a figure has stopped improving, as Keras's ReduceLROnPlateau.

    The rate becomes part of the training's state: a checkpoint holds it. It is added to the epoch's logs as
    "learning_rate".

    Arguments:
    - `monitor`: name of the figure in the epoch's logs (default "val_loss").
    - `factor`: the rate is multiplied by it (default 0.1).
    - `patience`: number of epochs without an improvement after which it is (default 10).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `min_delta`: smallest change that counts as an improvement (default 1e-4).
    - `cooldown`: number of epochs after a change in which nothing is counted (default 0).
    - `min_lr`: lowest rate (default 0).

    Raises PlanError for arguments that can't be, and when an epoch's logs lack `monitor`.
    """

    def __init__(
        self, monitor: str = "val_loss", factor: float = 0.1, patience: int = 10, mode: str = "auto",
        min_delta: float = 1e-4, cooldown: int = 0, min_lr: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta)
        self.factor = number("factor", factor, 0, 1)
        self.patience, self.cooldown = whole("patience", patience, 0), whole("cooldown", cooldown, 0)
        self.min_lr = number("min_lr", min_lr, 0)
        self.waited = self.resting = 0

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited, self.resting = inf, 0, 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        value, rate = self.value(epoch, logs), self.model.learning_rate
        logs["learning_rate"] = rate
        if self.resting:
            self.resting -= 1
            self.waited = 0
        if self.improves(value):
            self.waited = 0
        elif not self.resting:
            self.waited += 1
            if self.waited >= self.patience and rate > self.min_lr:
                self.model.learning_rate = max(rate * self.factor, self.min_lr)
                self.resting, self.waited = self.cooldown, 0


class LearningRateScheduler(Callback):
    """Set the learning rate of each epoch, as Keras's LearningRateScheduler.

    Arguments:
    - `schedule`: `schedule(epoch, rate)`, with the epoch counted from 0 and the rate so far, returns the new one.

    Raises PlanError if it is no function, or returns no rate.
    """

    def __init__(self, schedule: Callable[[int, float], float]) -> None:
        if not callable(schedule):
            raise PlanError(f"A schedule is a function of epoch and rate, not {schedule!r:.60}.")
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self.model.learning_rate = self.schedule(epoch, self.model.learning_rate)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        logs["learning_rate"] = self.model.learning_rate
