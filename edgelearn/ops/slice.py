"""Slice: a range of every axis, with strides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .gather import Axis, emit_gather
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Range:
    """Coordinates `begin`, `begin` + `stride`, ... of an axis, `size` of them."""

    begin: int
    size: int
    stride: int

    @property
    def last(self) -> int:
        return self.begin + (self.size - 1) * self.stride


@dataclass(frozen=True)
class Slice(Op):
    """Some coordinates of each axis: `begin`, `begin` + `stride`, ..., as tf.slice and tf.strided_slice.

    Arguments, a tuple with a number for each axis of an example:
    - `begin`: first coordinate; negative ones count from the end.
    - `size`: number of coordinates of the output; -1: as many as there are.
    - `strides`: steps; negative ones go backwards (default 1).

    Slice((0, -1, 0), (-1, -1, -1), (1, -1, 1)) mirrors images. Raises ShapeError if the input doesn't have these
    coordinates.
    """

    begin: tuple[int, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    selects = True

    def ranges(self, shape: Shape) -> list[Range]:
        """The coordinates of each axis of `shape`."""
        strides = self.strides or (1,) * len(shape)
        if not len(self.begin) == len(self.size) == len(strides) == len(shape):
            raise ShapeError(
                f"Slice takes begin, size and strides for each of the {len(shape)} axes of {shape}, not {self.begin}, "
                f"{self.size} and {strides}."
            )
        return [_range(*numbers) for numbers in zip(self.begin, self.size, strides, shape, strict=True)]

    def output_shape(self, shape: Shape) -> Shape:
        return tuple(found.size for found in self.ranges(shape))

    def _places(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        ranges = self.ranges(x.shape[1:])
        return np.ix_(np.arange(len(x)), *(r.begin + r.stride * np.arange(r.size) for r in ranges))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0][self._places(inputs[0])]

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        dx = np.zeros_like(inputs[0])
        dx[self._places(dx)] = dy
        return [dx], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        axes = [
            Axis(r.size, axis, n, r.stride, r.begin)
            for axis, (r, n) in enumerate(zip(self.ranges(x.shape[1:]), x.shape[1:], strict=True))
        ]
        emit_gather(e, x, axes, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        shape = inputs[0].shape[1:]
        axes = []
        for axis, (r, n) in enumerate(zip(self.ranges(shape), shape, strict=True)):
            sign = 1 if r.stride > 0 else -1
            axes.append(Axis(n, axis, r.size * abs(r.stride), sign, -sign * r.begin, abs(r.stride)))
        emit_gather(e, dy, axes, only(targets))


def _range(begin: int, size: int, stride: int, n: int) -> Range:
    """The coordinates of one axis of size `n`."""
    start = begin + n if begin < 0 else begin
    if stride == 0:
        raise ShapeError("A slice's strides are whole numbers other than 0.")
    left = (n - 1 - start) // stride + 1 if stride > 0 else start // -stride + 1
    found = Range(start, left if size == -1 else size, stride)
    if not (0 <= start < n and found.size >= 1 and 0 <= found.last < n):
        raise ShapeError(f"A slice of {size} from {begin} on, by {stride}, is not all within an axis of {n}.")
    return found
