"""Axes of an example as users name them: 1 is the first, as 0 is the batch; negative ones count from the last."""

from __future__ import annotations

from edgelearn.errors import ShapeError

from .tensor import Shape


def positions(axes: int | tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """Indices of `axes` in the `shape` of an example. Raises ShapeError for axes that it doesn't have, or has twice."""
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    rank = len(shape)
    found = tuple(axis + rank if axis < 0 else axis - 1 for axis in named)
    if any(axis == 0 for axis in named) or any(not 0 <= index < rank for index in found):
        raise ShapeError(
            f"{shape} has axes 1 to {rank}, or -{rank} to -1, but not all of {named}; the batch is axis 0."
        )
    if len(set(found)) < len(found):
        raise ShapeError(f"Some of the axes {named} of {shape} are the same one: name each once.")
    return found
