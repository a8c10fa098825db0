"""Stop when a figure has stopped improving."""

from __future__ import annotations

from edgelearn.errors import PlanError
from edgelearn.train.status import Logs

from .base import Callback


class EarlyStopping(Callback):
    """Stop when a figure has stopped improving, as Keras's EarlyStopping.

    Arguments:
    - `monitor`: name of the figure in the epoch's logs; accuracies should rise, all others fall (default "val_loss").
    - `patience`: number of epochs without an improvement after which training stops (default 0).
    - `min_delta`: smallest change that counts as an improvement (default 0).

    Raises PlanError when an epoch's logs lack `monitor`.
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 0, min_delta: float = 0.0) -> None:
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.best, self.waited = float("inf"), 0

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited = float("inf"), 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.monitor not in logs:
            raise PlanError(
                f"EarlyStopping watches '{self.monitor}', but epoch {epoch + 1} has only {', '.join(logs)}. Watch "
                f"one of these, or give fit validation_data with validation_frequency=1."
            )
        value = -logs[self.monitor] if self.monitor.endswith("accuracy") else logs[self.monitor]
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.model.stop_training = True
