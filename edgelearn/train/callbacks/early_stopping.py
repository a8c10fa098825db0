"""Stop when a figure has stopped improving."""

from __future__ import annotations

from math import inf

from edgelearn.interop.weights import Weights
from edgelearn.ops.settings import number, whole
from edgelearn.train.status import Logs

from .monitor import Monitor


class EarlyStopping(Monitor):
    """Stop when a figure has stopped improving, as Keras's EarlyStopping.

    Arguments:
    - `monitor`: name of the figure in the epoch's logs (default "val_loss").
    - `patience`: number of epochs without an improvement after which training stops (default 0).
    - `min_delta`: smallest change that counts as an improvement (default 0).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `baseline`: an improvement has to be better than this, too (default: none).
    - `restore_best_weights`: give the model the weights of the best epoch at the end (default False).
    - `start_from_epoch`: epochs before this one, counted from 0, are not watched (default 0).

    Raises PlanError for another mode, and when an epoch's logs lack `monitor`.
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 0, min_delta: float = 0.0, mode: str = "auto",
        baseline: float | None = None, restore_best_weights: bool = False, start_from_epoch: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta)
        self.patience = whole("patience", patience, 0)
        self.baseline = None if baseline is None else number("baseline", baseline)
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = whole("start_from_epoch", start_from_epoch, 0)
        self.waited, self.best_epoch = 0, 0
        self._best_weights: Weights | None = None

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited, self._best_weights = inf, 0, None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        value = self.value(epoch, logs)
        if epoch < self.start_from_epoch:
            return
        self.waited += 1
        better = self.improves(value)
        if better or self._best_weights is None:
            self.best_epoch = epoch
            self._best_weights = self.model.weights if self.restore_best_weights else None
        if better and (self.baseline is None or value < (-self.baseline if self.rises else self.baseline)):
            self.waited = 0
        elif not better and self.waited >= self.patience:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs) -> None:
        if self._best_weights is not None:
            self.model.weights = self._best_weights
            self._best_weights = None
