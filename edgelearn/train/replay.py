"""Learning one example at a time with latent replay: earlier examples are kept as activations of the last frozen layer
in 8 bits, and trained on again beside each new one (Pellegrini et al. 2020, "Latent replay for real-time continual
learning")."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from edgelearn.compile import Budget, BudgetLike
from edgelearn.compile.search import budgets
from edgelearn.display import Displayed, megabytes, plural
from edgelearn.errors import DataError, PlanError
from edgelearn.graph import split_frozen
from edgelearn.interop.weights import Weights
from edgelearn.ops.base import whole

from .state import Logs, TrainingState

UNDONE = 10  # calls of `learn` that can be undone
RECORD = 8  # bytes besides an example's activations: its scale and its class
LEVELS = 127  # of the largest value, in int8


@dataclass(frozen=True)
class _Moment:
    """A Replay before a call of `learn`, to go back to: the training, and what the call overwrote in the memory."""

    state: TrainingState
    drawn: Any
    count: int
    overwritten: list[tuple[int, np.ndarray, np.float32, np.int32]]  # slot, activations, scale, class


class Replay(Displayed):
    """A classifier that learns examples as they come, and earlier ones beside them. `Model.replay` makes one.

    The model that it began with stays as it is: assign `weights` to it to keep what was learnt. Frozen layers run once
    for an example; what is trained is everything above them.

    Arguments:
    - `model`: the Model to begin with; `memory`, `batch_size`, `updates`: as `Model.replay` has them.

    - `count`: number of examples in the memory, of at most `slots`.
    - `plans`: "features" of the frozen layers, unless everything is trained, and "update".
    """

    def __init__(
        self, model: Any, memory: BudgetLike | None = "1 MB", batch_size: int = 32, updates: int = 1
    ) -> None:  # fmt: skip
        network = model.network
        shape = network.output.shape
        if len(network.outputs) > 1 or len(network.inputs) > 1 or len(shape) != 1:
            raise PlanError("Replay needs a classifier of one input and one output.")
        self.batch_size, self.updates = whole("batch_size", batch_size), whole("updates", updates)
        if batch_size < 2:
            raise PlanError("A mini-batch of replay holds a new and an old example at least: batch_size=2.")
        split, weights = split_frozen(network), model.weights
        above, make = (split.suffix if split else network), type(model)
        own = {name: weights[name] for name in above.parameters}
        self._below = None
        if split:
            below = {name: weights[name] for name in split.prefix.parameters}
            self._below = make(split.prefix, below, share_with=model)
        trained = make(above, own, share_with=model, seed=model.seed)
        trained.settings = replace(model.settings, network=above, batchnorm="moving")
        self.trainer = trained.trainer(self.batch_size, examples=tuple(range(1, self.batch_size)))
        self.plans = {"update": self.trainer.plan}
        if self._below:
            self.plans = {"features": self._below.forward_plan(1), **self.plans}
        self.shape, self.classes, self._frozen = next(iter(above.inputs.values())), shape[0], weights
        limit = 0 if memory is None else min(each.nbytes for each in budgets(memory))
        self.slots = limit // (prod(self.shape) + RECORD)
        if memory is not None and not self.slots:
            need = Budget(prod(self.shape) + RECORD)
            raise PlanError(f"A memory of {megabytes(limit)} holds no example, which takes {megabytes(need.nbytes)}.")
        self._codes = np.zeros((self.slots, *self.shape), np.int8)
        self._scales, self._labels = np.zeros(self.slots, np.float32), np.zeros(self.slots, np.int32)
        self.count, self._rng = 0, np.random.default_rng(model.seed)
        self._before: deque[_Moment] = deque(maxlen=UNDONE)

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def replay_bytes(self) -> int:
        """Host memory of the examples that can be kept."""
        return self._codes.nbytes + self._scales.nbytes + self._labels.nbytes

    @property
    def planned_bytes(self) -> int:
        """All that it holds: device memory of both plans, and the examples."""
        return self.replay_bytes + sum(plan.peak_bytes for plan in self.plans.values())

    @property
    def headline(self) -> str:
        parts = [f"{megabytes(plan.peak_bytes)} {name}" for name, plan in self.plans.items()]
        parts.append(f"{megabytes(self.replay_bytes)} examples")
        return (
            f"of {self.count} of {plural(self.slots, 'example')}, {', '.join(parts)}: {megabytes(self.planned_bytes)}"
        )

    @property
    def labels(self) -> np.ndarray:
        """Classes of the examples in the memory, int32 (count,)."""
        return self._labels[: self.count].copy()

    def features(self, x: Any) -> np.ndarray:
        """Return the activations of the last frozen layer for examples: float32 (n, ...)."""
        x = np.asarray(x, np.float32)
        return self._below.predict(x, 1) if self._below else x

    def remember(self, x: Any, y: Any) -> None:
        """Put examples into the memory without learning them. Arguments and errors as `learn`, of any number."""
        features, labels = self.features(x), self._checked(x, y)
        self._keep(features, labels)
        self._before.clear()

    def _checked(self, x: Any, y: Any) -> np.ndarray:
        labels = np.asarray(y, np.int32).reshape(-1)
        if len(labels) != len(x) or not len(labels):
            raise DataError(f"Give a class number for each example, and one at least: {len(x)} and {len(labels)}.")
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(f"Classes are 0 to {self.classes - 1}, not {labels.min()} to {labels.max()}.")
        return labels

    def _keep(self, features: np.ndarray, labels: np.ndarray) -> list[tuple[int, np.ndarray, np.float32, np.int32]]:
        """Store examples, each in the place of one of the class that has most once all are taken; returns what was
        there before."""
        overwritten = []
        for feature, label in zip(features, labels, strict=True) if self.slots else ():
            if self.count < self.slots:
                place, self.count = self.count, self.count + 1
            else:
                numbers = np.bincount(self._labels, minlength=self.classes)
                numbers[label] += 1  # with the new one, so that a class that has most replaces its own
                place = int(self._rng.choice(np.flatnonzero(self._labels == numbers.argmax())))
            overwritten.append((place, self._codes[place].copy(), self._scales[place], self._labels[place]))
            scale = float(np.abs(feature).max()) / LEVELS or 1.0
            self._codes[place] = np.round(feature / scale)
            self._scales[place], self._labels[place] = scale, label
        return overwritten

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(activations, classes) of `count` kept examples: a class first, then one of its examples."""
        kept = self._labels[: self.count]
        classes = self._rng.choice(np.unique(kept), count)
        places = np.array([self._rng.choice(np.flatnonzero(kept == one)) for one in classes])
        scales = self._scales[places].reshape(-1, *[1] * len(self.shape))
        return self._codes[places] * scales, kept[places]

    # -- learning ------------------------------------------------------------------------------------------------

    def learn(self, x: Any, y: Any) -> Logs:
        """Learn new examples, old ones beside them, and keep the new ones. Nothing is compiled after the first call.

        Arguments:
        - `x`: examples (n, ...), of which at most half of `batch_size`; often one.
        - `y`: their class numbers, int (n,).

        Returns loss and accuracy of the last update's mini-batch, from before it. Raises DataError for classes that the
        network doesn't have, ShapeError for other examples, NonFiniteError as Trainer.step.
        """
        labels = self._checked(x, y)
        if 2 * len(labels) > self.batch_size:
            raise DataError(f"Learn at most {self.batch_size // 2} examples at a time, not {len(labels)}.")
        features = self.features(x)
        count, drawn, state, logs = self.count, self._rng.bit_generator.state, self.trainer.snapshot(), Logs()
        for _ in range(self.updates):
            others = self.batch_size - len(labels)
            old = self._draw(others) if self.count else (features[:0], labels[:0])
            batch, classes = np.concatenate([features, old[0]]), np.concatenate([labels, old[1]])
            fill = np.resize(np.arange(len(classes)), self.batch_size)  # with the new ones, where there are no others
            logs = self.trainer.step(batch[fill].astype(np.float32), classes[fill])
        self._before.append(_Moment(state, drawn, count, self._keep(features, labels)))
        return logs

    def predict(self, x: Any) -> np.ndarray:
        """The network's output for examples, float32 (n, classes)."""
        return self.trainer.predict(self.features(x))

    def undo(self) -> None:
        """Go back to before the last call of `learn`, to the bit, up to ten times. Raises PlanError without one."""
        if not self._before:
            raise PlanError(f"There is nothing to undo: the last {UNDONE} calls of learn can be, since `remember`.")
        before = self._before.pop()
        self.trainer.resume(before.state)
        self._rng.bit_generator.state = before.drawn
        for slot, codes, scale, label in reversed(before.overwritten):
            self._codes[slot], self._scales[slot], self._labels[slot] = codes, scale, label
        self.count = before.count

    @property
    def weights(self) -> Weights:
        """Copies of all weights as they are now, for the model that it began with."""
        return {**self._frozen, **self.trainer.weights}

    def close(self) -> None:
        """Give the device's memory back."""
        self.trainer.close()
        if self._below:
            self._below._close()
