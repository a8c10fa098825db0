"""Affine gathers: every coordinate of the result leads to one of the source, or to none. See kernels/gather.cl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from edgelearn.launch import In

from .emit import Emitter
from .target import Target
from .tensor import BLOCK, Shape, Tensor


@dataclass(frozen=True)
class Axis:
    """An axis of the result. Coordinate i reads (step * i + begin) / divisor on an axis of the source, if that is whole
    and step * i + begin in [low, high).

    Arguments:
    - `size`: of the result's axis.
    - `source`: index of the source's axis.
    - `high`: as above.
    - `step` (default 1), `begin` (default 0), `divisor` (default 1), `low` (default 0): as above.
    - `clamped`: what lies outside [low, high) reads the nearest in there (default False).
    """

    size: int
    source: int
    high: int
    step: int = 1
    begin: int = 0
    divisor: int = 1
    low: int = 0
    clamped: bool = False

    @classmethod
    def whole(cls, size: int, source: int) -> Axis:
        """An axis of the source as it is."""
        return cls(size, source, size)

    @classmethod
    def repeated(cls, size: int, source: int) -> Axis:
        """An axis of the source of size 1, repeated."""
        return cls(size, source, 1, step=0)


def strides(shape: Shape) -> list[tuple[int, int]]:
    """(rows, channels) that a step along each axis of an example moves."""
    last = len(shape) - 1
    return [(0, 1) if axis == last else (prod(shape[axis + 1 : -1]), 0) for axis in range(len(shape))]


def emit_gather(
    e: Emitter, x: Tensor, axes: Sequence[Axis], target: Target, factor: float = 1.0, fill: float = 0.0
) -> None:
    """Emit target = factor * x gathered along the `axes` of an example, and `fill` where they lead nowhere."""
    y, shape = target.tensor, x.shape[1:]
    stride = strides(shape)
    rows = tuple((a.size, a.step, a.begin, a.divisor, a.low, a.high, int(a.clamped), *stride[a.source]) for a in axes)
    groups, count = e.bands(y.rows, y.blocks)
    e.launch(
        "gather.cl", "gather", (groups, y.blocks), x.read, In(e.table(rows)), y.rows, count, len(axes),
        x.rows // x.images, y.rows // y.images, y.channels, int(_is_aligned(axes[-1], shape)), float(factor),
        float(fill), *target.arguments, **target.macros,
    )  # fmt: skip


def emit_zeros(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = 0: the gradient of an input without one. `x`: any tensor, of which nothing is read."""
    emit_gather(e, x, [Axis(n, 0, 0) for n in target.tensor.shape[1:]], target)


def _is_aligned(channels: Axis, shape: Shape) -> bool:
    """True if every block of the result is one of the source, padding included."""
    end = channels.begin + channels.size
    return (
        channels.source == len(shape) - 1
        and channels.step == channels.divisor == 1
        and channels.begin % BLOCK == 0
        and not channels.clamped
        and channels.low <= channels.begin
        and end <= channels.high
        and (end == shape[-1] or end % BLOCK == 0)
    )
