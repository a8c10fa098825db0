"""The training loop: epochs of mini-batches, each run as micro-batches, from wherever training stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.compile.lower import input_block
from edgelearn.data.split import epoch_order, mini_batches
from edgelearn.errors import NonFiniteError
from edgelearn.runtime import Session

from . import sources
from .passes import evaluate
from .prefetch import ahead
from .schedules import rate_at
from .sources import Source

if TYPE_CHECKING:
    from .model import Model

Tell = Callable[..., None]


@dataclass
class Position:
    """Where training stands: the next step of an epoch, updates so far, and the epoch's sums so far."""

    epoch: int = 0
    step: int = 0
    updates: int = 0
    loss: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0


class StoppedError(Exception):
    """`stop_training` was set before the first step: while kernels compiled, features were extracted, or the beginning
    was evaluated."""


@dataclass
class Loop:
    """Trains `model` on examples `x` with labels `y` until `model.epochs` are done, `model.position` always saying how
    far it is. `session` is asked for at each step, since a callback may have used another one. `tell(moment,
    *arguments)` tells callbacks."""

    model: Model
    session: Callable[[], Session]
    tell: Tell
    x: Source
    y: np.ndarray
    batch_size: int
    shuffle: bool
    validation_data: tuple[Source, np.ndarray] | None
    validation_frequency: int

    def run(self) -> None:
        """Raises StoppedError if it is stopped before the first step, NonFiniteError naming the step and the layer."""
        model, logs = self.model, {}
        if self.validation_data is not None and model.position == Position():
            logs = self._validate(model.check_stop)
        self.session()
        self.tell("on_train_begin", logs)
        while model.position.epoch < model.epochs and not model.stop_training:
            if not self._epoch():
                break
            self._end_epoch()

    def _epoch(self) -> bool:
        """The steps that are left of this epoch; whether it came to its end."""
        model, at = self.model, self.model.position
        x = sources.at_epoch(self.x, at.epoch)
        self.tell("on_epoch_begin", at.epoch, {})
        order = epoch_order(len(x), model.seed, at.epoch) if self.shuffle else np.arange(len(x))
        batches = list(mini_batches(order, self.batch_size))[at.step :]
        plan = self.session().plan
        parts = [part for indices in batches for part in mini_batches(indices, plan.request.micro_batch)]
        block = input_block(plan.request.network)
        with closing(ahead(parts, lambda part: (x.packed(part, block), self.y[part]))) as stream:
            for number, indices in enumerate(batches, start=1):
                start = time.perf_counter()
                rate = rate_at(model.optimizer.learning_rate, at.updates)
                micro = (value for _, value in islice(stream, plan.micro_batch_count(len(indices))))
                loss, correct, finite = self.session().train(micro, len(indices), rate, at.updates + 1)
                if not finite:
                    raise NonFiniteError(self._diagnose(x, indices, rate))
                at.step, at.updates, at.seen = at.step + 1, at.updates + 1, at.seen + len(indices)
                at.loss, at.correct = at.loss + loss * len(indices), at.correct + correct
                at.seconds += time.perf_counter() - start
                self.tell("on_train_batch_end", at.step - 1, {"loss": loss, "accuracy": correct / len(indices)})
                if model.stop_training:
                    return number == len(batches)
        return True

    def _end_epoch(self) -> None:
        model, at = self.model, self.model.position
        start = time.perf_counter()
        logs = {"loss": at.loss / at.seen, "accuracy": at.correct / at.seen}
        done = at.epoch + 1
        if self.validation_data is not None and (done % self.validation_frequency == 0 or done == model.epochs):
            logs |= self._validate()
        logs["seconds"] = at.seconds + time.perf_counter() - start
        model.position = Position(epoch=done, updates=at.updates)
        self.tell("on_epoch_end", at.epoch, logs)

    def _validate(self, check: Callable[[], None] = lambda: None) -> dict[str, float]:
        found = evaluate(self.session(), *self.validation_data, check)
        return {f"val_{name}": value for name, value in found.items()}

    def _diagnose(self, x: Source, indices: np.ndarray, rate: float) -> str:
        """Where the NaN or infinity of this step came from, and what to do."""
        session, at = self.session(), self.model.position
        block = input_block(session.plan.request.network)
        parts = list(mini_batches(indices, session.plan.request.micro_batch))
        step = f"Epoch {at.epoch + 1}, step {at.step + 1}"
        for part in parts:
            words = x.packed(part, block)
            finite = np.isfinite(words.reshape(len(words), len(part), -1)).all((0, 2))
            if not finite.all():
                return (
                    f"{step}: example {part[~finite][0]} holds a NaN or an infinity. Clean the data, then start again."
                )
        micro = ((x.packed(part, block), self.y[part]) for part in parts)
        found = session.first_nonfinite(micro, len(indices), rate, at.updates + 1)
        where = f"first in layer '{found[0].layer}' ({found[0].kernel}, {found[1].name})" if found else "in the loss"
        return (
            f"{step}: a NaN or an infinity appeared {where}. Weights are as before the step. Lower the learning rate "
            f"(now {rate:g}), or start from other weights."
        )
