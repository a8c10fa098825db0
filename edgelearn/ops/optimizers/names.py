"""Keras's names of optimizers, as `compile(optimizer="adam")` has them."""

from __future__ import annotations

from typing import Any

from edgelearn.errors import PlanError

from .adam import Adam, AdamW
from .base import Optimizer
from .lamb import LAMB
from .lion import Lion
from .rmsprop import RMSprop
from .sgd import SGD

NAMES: dict[str, type[Optimizer]] = {
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop, "lion": Lion, "lamb": LAMB,
}  # fmt: skip


def as_optimizer(optimizer: Any) -> Optimizer:
    """Return an optimizer, given as an object or by its name in Keras. Raises PlanError for anything else."""
    if isinstance(optimizer, str) and optimizer.lower() in NAMES:
        return NAMES[optimizer.lower()]()
    if not isinstance(optimizer, Optimizer):
        raise PlanError(
            f"An optimizer is an object such as SGD(0.01) or Adam(), or one of the names {', '.join(NAMES)}, not "
            f"{optimizer!r:.60}."
        )
    return optimizer
