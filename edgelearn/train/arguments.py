"""Arguments of `fit`, `evaluate` and `predict`, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgelearn.errors import PlanError, ShapeError
from edgelearn.ops.settings import whole

from .callbacks import Callback

BATCH_SIZE = 32  # Keras's default, which None stands for


def batch_size_of(value: Any) -> int:
    """Return the examples of a mini-batch; None stands for 32. Raises PlanError for anything but a whole number."""
    return BATCH_SIZE if value is None else whole("batch_size", value)


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


def as_pair(data: Any) -> tuple[Any, Any]:
    """Return validation data as (x, y). Raises ShapeError for anything else."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        what = f"{len(data)} of them" if isinstance(data, tuple | list) else type(data).__name__
        raise ShapeError(f"validation_data is a pair (x, y), not {what}.")
    return data[0], data[1]
