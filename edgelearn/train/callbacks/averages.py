"""Validate and save with the moving average of the weights."""

from __future__ import annotations

from edgelearn.train.status import Logs

from .base import Callback


class SwapEMAWeights(Callback):
    """Put the moving average of the weights in the model while it is validated, as Keras's SwapEMAWeights.

    The optimizer keeps the average: `Adam(use_ema=True)`. Unlike in Keras, `fit` ends with the weights themselves;
    Model.swap_averages puts the average in.

    Arguments:
    - `swap_on_epoch`: also from the end of an epoch to the beginning of the next, so that a ModelCheckpoint behind this
      callback saves the average (default False). `fit` then ends with the average in the model.

    Raises PlanError if the optimizer keeps no average.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        self.swap_on_epoch = swap_on_epoch
        self._swapped = False

    def on_train_begin(self, logs: Logs) -> None:
        self._swapped = False

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self._swap(False)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._swap(self.swap_on_epoch)

    def on_test_begin(self, logs: Logs) -> None:
        self._swap(self.model.position.updates > 0)

    def on_test_end(self, logs: Logs) -> None:
        self._swap(False)

    def _swap(self, averaged: bool) -> None:
        if averaged != self._swapped:
            self.model.swap_averages()
            self._swapped = averaged
