"""The training loop: epochs of mini-batches, each run as micro-batches, from wherever training stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from edgelearn.data.split import epoch_order, mini_batches
from edgelearn.errors import PlanError
from edgelearn.ops import Loss, Losses

from . import sources
from .callbacks.base import CallbackList
from .metrics import OutputMetrics
from .passes import added, evaluate, result_logs
from .sources import Source
from .status import Logs, TrainingStatus
from .targets import Targets
from .training_session import TrainingSession


@dataclass
class Loop:
    """Trains until `epochs` are done; `status` says at every moment how far it is.

    Arguments:
    - `training`: returns the open session; called at each step, since a callback may have used another one.
    - `status`: progress.
    - `notify`: the callbacks.
    - `x`, `y`: examples and labels; `validation_data`: others, evaluated every `validation_frequency` epochs.
    - `batch_size`: examples of a mini-batch.
    - `epochs`: the number of epochs in all, those done before included.
    - `shuffle`: show the examples in another order in each epoch.
    - `metrics`: of the validation data (default none).
    """

    training: Callable[[], TrainingSession]
    status: TrainingStatus
    notify: CallbackList
    x: Source
    y: Targets
    batch_size: int
    epochs: int
    shuffle: bool = True
    validation_data: tuple[Source, Targets] | None = None
    validation_frequency: int = 1
    metrics: OutputMetrics | None = None

    def run(self) -> None:
        """Raises StoppedError if it is stopped before the first step, NonFiniteError naming the step and the layer."""
        status, logs = self.status, {}
        if self.validation_data is not None and status.position.updates == 0:
            logs = self._validate(status.check_stop)
        self.training()
        self.notify("on_train_begin", logs)
        while status.position.epoch < self.epochs and not status.stop_training:
            if not self._epoch():
                break
            self._end_epoch()

    def _epoch(self) -> bool:
        """Run the remaining steps of this epoch; True if it came to its end."""
        status, at, training = self.status, self.status.position, self.training()
        x = sources.at_epoch(self.x, at.epoch)
        self.notify("on_epoch_begin", at.epoch, {})
        plan = training.plan
        order = epoch_order(len(x), plan.request.seed, at.epoch) if self.shuffle else np.arange(len(x))
        batches = list(mini_batches(order, self.batch_size))[at.step :]
        parts = [part for indices in batches for part in mini_batches(indices, plan.request.micro_batch)]
        with closing(training.micro_batches(x, self.y, parts)) as stream:
            for number, indices in enumerate(batches, start=1):
                self.notify("on_train_batch_begin", at.step, {})
                start = time.perf_counter()
                micro = (value for _, value in islice(stream, plan.micro_batch_count(len(indices))))
                loss, correct, own = self.training().update(x, self.y, indices, micro)
                at.step, at.seen = at.step + 1, at.seen + len(indices)
                at.loss, at.correct = at.loss + loss * len(indices), at.correct + correct
                at.by_output = added(at.by_output, own)
                at.seconds += time.perf_counter() - start
                self.notify("on_train_batch_end", at.step - 1, training.logs(loss, correct, own, len(indices)))
                if status.stop_training:
                    return number == len(batches)
        return True

    def _end_epoch(self) -> None:
        at = self.status.position
        start = time.perf_counter()
        losses = self.training().plan.request.losses
        logs = result_logs(losses, at.seen, at.loss, at.correct, at.by_output)
        done = at.epoch + 1
        if self.validation_data is not None and (done % self.validation_frequency == 0 or done == self.epochs):
            logs |= self._validate()
        logs["seconds"] = at.seconds + time.perf_counter() - start
        self.status.position = at.next_epoch()
        self.notify("on_epoch_end", at.epoch, logs)

    def _validate(self, check: Callable[[], None] = lambda: None) -> Logs:
        if self.validation_data is None:
            return {}
        self.notify("on_test_begin", {})
        logs = evaluate(self.training().session, *self.validation_data, self.metrics, check)
        self.notify("on_test_end", logs)
        return {f"val_{name}": value for name, value in logs.items() if isinstance(value, float)}


def start(
    status: TrainingStatus, loss: Loss | Losses, examples: int, batch_size: int, micro_batch: int, epochs: int,
    shuffle: bool,
) -> None:  # fmt: skip
    """Check that training can continue until `epochs` are done, and write the totals into `status`.

    Raises PlanError if it can't.
    """
    at = status.position
    if at.epoch >= epochs:
        raise PlanError(
            f"Nothing is left to train: {at.epoch} epochs are done, and epochs={epochs} counts these too. Ask for "
            f"more of them, or compile again to train anew."
        )
    if at.seen != min(at.step * batch_size, examples):
        raise PlanError(
            f"Training stands in the middle of epoch {at.epoch + 1}, behind {at.seen} examples in {at.step} steps, "
            f"which {examples} examples in mini-batches of {batch_size} don't come to: go on with those that it "
            f"began with, or compile again to train anew."
        )
    if loss.ordered and shuffle:
        raise PlanError(f"{type(loss).__name__} needs examples in the order of their episodes: shuffle=False.")
    sources.check_whole(loss, examples, batch_size)
    sources.check_whole(loss, batch_size, micro_batch)
    status.stop_training, status.epochs = False, epochs
    status.steps_per_epoch = -(-examples // batch_size)
