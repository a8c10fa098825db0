"""Pooling: MaxPooling2D, AveragePooling2D and GlobalAveragePooling2D."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .tensor import Shape, Tensor
from .window import Padding, Pair, Window, pair

MOST_TAPS = 127  # whose numbers 8 bits hold


@dataclass(frozen=True)
class GlobalAveragePooling2D(Op):
    """(height, width, channels) -> (channels,): the mean over all pixels."""

    has_values = True

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"GlobalAveragePooling2D takes (height, width, channels), not {shape}.")
        return (shape[-1],)

    def flops(self, shape: Shape) -> int:
        return shape[0] * shape[1] * shape[2]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].mean((1, 2))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        return [np.broadcast_to(dy[:, None, None] / (x.shape[1] * x.shape[2]), x.shape).copy()], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "pooling.cl", "global_average_forward", (x.images * e.traits.members, x.blocks), x.read, y.write,
            x.images, x.height * x.width, **y.value_macros,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "pooling.cl", "global_average_backward", (groups, x.blocks), dy.read, x.rows, count, x.height * x.width,
            *target.arguments, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class Pooling2D(Op):
    """Base of pooling over windows.

    Arguments:
    - `pool_size`: int or (y, x) (default 2).
    - `strides`: int or (y, x) (default `pool_size`).
    - `padding`: "valid", "same" or ((top, bottom), (left, right)); padding is ignored in maximum and mean.

    Raises ShapeError if the windows don't fit the input, or if one would hold only padding.
    """

    pool_size: int | Pair = 2
    strides: int | Pair | None = None
    padding: Padding = "valid"

    has_values = True
    kind: ClassVar[str]

    def window(self, shape: Shape) -> Window:
        """The windows over an input of `shape`."""
        size = pair(self.pool_size)
        window = Window.of(shape, size, size if self.strides is None else pair(self.strides), self.padding)
        geometry = zip(shape[:2], size, window.strides, window.padding, window.output, strict=True)
        if any(before >= k or (count - 1) * s - before >= n for n, k, s, (before, _), count in geometry):
            raise ShapeError(f"With padding {self.padding} some {size} windows hold only padding: use less of it.")
        return window

    def output_shape(self, shape: Shape) -> Shape:
        return (*self.window(shape).output, shape[-1])

    def flops(self, shape: Shape) -> int:
        height, width, channels = self.output_shape(shape)
        return height * width * channels * self.window(shape).taps

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        groups, count = e.bands(y.rows, y.blocks)
        e.launch(
            "pooling.cl", f"{self.kind}_forward", (groups, y.blocks), x.read, y.write, y.rows, count, x.height,
            x.width, y.height, y.width, **self.window(x.shape[1:]).macros, **_type_macros(y),
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "pooling.cl", f"{self.kind}_backward", (groups, x.blocks), *self._compared(x, y), dy.read, x.rows, count,
            x.height, x.width, y.height, y.width, *target.arguments,
            **self.window(x.shape[1:]).macros, **target.macros,
        )  # fmt: skip

    def _compared(self, x: Tensor, y: Tensor) -> list[In]:
        """Tensors other than dy that the backward pass reads."""
        return []


@dataclass(frozen=True)
class MaxPooling2D(Pooling2D):
    """The maximum of each window. As in TensorFlow its gradient goes to the first pixel that holds the maximum."""

    kind = "max"
    selects = True
    compares = True

    @property
    def selects_integers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return prod(pair(self.pool_size)) <= MOST_TAPS

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        window = self.window(inputs[0].shape[1:])
        padded = window.pad(inputs[0], -np.inf)
        return np.max([padded[region] for _, _, region in window.slices()], axis=0)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        window = self.window(inputs[0].shape[1:])
        padded, y = window.pad(inputs[0], -np.inf), self.reference_forward(inputs, weights)
        dx, waiting = np.zeros_like(padded), np.ones_like(y, bool)
        for _, _, region in window.slices():
            first = waiting & (padded[region] == y)
            dx[region] += dy * first
            waiting &= ~first
        return [window.crop(dx)], {}

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        """In two launches where windows overlap, or hold 8-bit integers: each is searched once, not for each of its
        pixels."""
        (x,), target = inputs, only(targets)
        window = self.window(x.shape[1:])
        overlap = any(size > stride for size, stride in zip(pair(self.pool_size), window.strides, strict=True))
        if window.taps > MOST_TAPS or not (overlap or x.dtype == "int8"):
            super().emit_backward(e, inputs, y, dy, targets)
            return
        chosen, sizes = e.tensor("taps of maxima", y.shape, dtype="int8"), (x.height, x.width, y.height, y.width)
        groups, count = e.bands(y.rows, y.blocks)
        e.launch(
            "pooling.cl", "max_taps", (groups, y.blocks), x.read, y.read, chosen.write, y.rows, count, *sizes,
            **window.macros, **_type_macros(y),
        )  # fmt: skip
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "pooling.cl", "max_backward_taps", (groups, x.blocks), chosen.read, dy.read, x.rows, count, *sizes,
            *target.arguments, **window.macros, **target.macros,
        )  # fmt: skip

    def _compared(self, x: Tensor, y: Tensor) -> list[In]:
        return [x.read, y.read]


@dataclass(frozen=True)
class AveragePooling2D(Pooling2D):
    """The mean of each window's pixels, without padding, as in Keras."""

    kind = "average"

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        window = self.window(inputs[0].shape[1:])
        padded = window.pad(inputs[0])
        return reduce(np.add, (padded[region] for _, _, region in window.slices())) / _pixels(window)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        window = self.window(inputs[0].shape[1:])
        dx = window.pad(np.zeros_like(inputs[0]))
        for _, _, region in window.slices():
            dx[region] += dy / _pixels(window)
        return [window.crop(dx)], {}


def _type_macros(y: Tensor) -> dict[str, int]:
    """VALUES, or INTEGERS in kernels/pooling.cl."""
    return {"integers": 1} if y.dtype == "int8" else y.value_macros


def _pixels(window: Window) -> np.ndarray:
    """The number of pixels in each window: (1, height, width, 1)."""
    inside = window.pad(np.ones((1, window.height, window.width, 1)))
    return reduce(np.add, (inside[region] for _, _, region in window.slices()))
