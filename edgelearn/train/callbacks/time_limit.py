"""Stop after a time."""

from __future__ import annotations

import time

from edgelearn.train.status import Logs

from .base import Callback


class TimeLimit(Callback):
    """Stop at the end of the first step that ends more than `seconds` after the start."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, 0.0

    def on_train_begin(self, logs: Logs) -> None:
        self.start = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.monotonic() - self.start > self.seconds:
            self.model.stop_training = True
