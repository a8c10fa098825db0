"""Arguments of `fit`, `evaluate` and `predict`, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import BudgetLike
from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses
from edgelearn.ops.settings import number, whole

from .callbacks import Callback
from .sources import Source, Subset
from .streams import examples_of, is_stream
from .targets import Targets

BATCH_SIZE = 32  # Keras's default, which None stands for


@dataclass
class FitArguments:
    """The arguments of Model.fit that have defaults. Raises PlanError or ShapeError for values that can't be."""

    batch_size: int | None = BATCH_SIZE
    epochs: int = 1
    micro_batch: int | None = None
    validation_data: Any = None
    validation_split: float = 0.0
    validation_frequency: int = 1
    callbacks: Any = ()
    verbose: str | int = "auto"
    cache: str | None = None
    cache_folder: Path | None = None
    budget: BudgetLike | None = None
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    steps_per_epoch: int | None = None
    validation_steps: int | None = None

    def __post_init__(self) -> None:
        self.batch_size = BATCH_SIZE if self.batch_size is None else whole("batch_size", self.batch_size)
        self.micro_batch = optional_size("micro_batch", self.micro_batch)
        self.epochs = whole("epochs", self.epochs)
        self.steps_per_epoch = optional_size("steps_per_epoch", self.steps_per_epoch)
        self.validation_steps = optional_size("validation_steps", self.validation_steps)
        self.validation_frequency = whole("validation_frequency", self.validation_frequency)
        self.validation_split = number("validation_split", self.validation_split, 0, 1)
        self.callbacks = as_callbacks(self.callbacks)
        if self.verbose not in ("auto", 0, 1, 2):
            raise PlanError(f"verbose is 'auto', 0 (silent), 1 (a bar) or 2 (a line an epoch), not {self.verbose!r}.")
        if self.validation_data is not None:
            check_validation_data(self.validation_data)
            if self.validation_split:
                raise PlanError("Give validation_data or validation_split, not both.")

    def labeled(self, x, y, network: Network, loss: Loss | Losses) -> list[tuple[Source, Targets]]:
        """Return the examples to train on and, if there are any, those to validate with. Raises ShapeError if some
        don't fit, PlanError if a share of the examples leaves none."""
        weights = self.sample_weight, self.class_weight
        examples = examples_of(x, y, network, loss, *weights, steps=self.steps_per_epoch)
        if self.validation_data is not None:
            given = self.validation_data
            others = (given, None) if is_stream(given) and not isinstance(given, tuple | list) else given
            return [
                examples,
                examples_of(others[0], others[1], network, loss, *others[2:], steps=self.validation_steps),
            ]
        return self._split(*examples) if self.validation_split else [examples]

    def _split(self, x: Source, y: Targets) -> list[tuple[Source, Targets]]:
        kept = floor(len(x) * (1 - self.validation_split))  # as Keras
        if kept == len(x) or not kept:
            raise PlanError(f"A validation_split of {self.validation_split:g} of {len(x)} examples leaves none.")
        return [(_part(x, start, stop), y.part(start, stop)) for start, stop in ((0, kept), (kept, len(x)))]


def optional_size(name: str, value: Any) -> int | None:
    """Return None or a whole number of at least 1. Raises PlanError for anything else."""
    return None if value is None else whole(name, value)


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as a list; a single one is fine, and so is None. Raises PlanError for anything else."""
    given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
    if not isinstance(given, Sequence | set | frozenset) or isinstance(given, str):
        raise PlanError(f"callbacks is a list of Callback objects, such as [EarlyStopping()], not {callbacks!r:.60}.")
    for callback in given:
        if not isinstance(callback, Callback):
            raise PlanError(
                f"A callback is an object of a class that derives from Callback, such as EarlyStopping(), not "
                f"{callback!r:.60}."
            )
    return list(given)


def check_validation_data(data: Any) -> None:
    """Raises ShapeError unless `data` is (x, y) or (x, y, sample_weight), or a stream of these."""
    if is_stream(data) and not isinstance(data, tuple | list):
        return
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        what = f"{len(data)} of them" if isinstance(data, tuple | list) else type(data).__name__
        raise ShapeError(f"validation_data is (x, y) or (x, y, sample_weight), not {what}.")


def _part(x: Source, start: int, stop: int) -> Source:
    return x[start:stop] if isinstance(x, np.ndarray) else Subset(x, np.arange(start, stop))
