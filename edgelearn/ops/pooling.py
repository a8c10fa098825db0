"""Pooling over windows, and reductions: Mean, Sum and Max over any axes of an example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .arithmetic import emit_repeated, emit_summed
from .base import Arrays, Gradients, Op, Targets, only
from .constants import ReductionKind
from .emit import Emitter
from .quantize import group_size
from .shapes import Axis, emit_gather, positions, strides
from .target import Target
from .tensor import BLOCK, Shape, Tensor
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
        (x,), vectors = inputs, BLOCK // e.traits.vector
        many = x.height * x.width * vectors >= 2 * group_size(e)
        group = group_size(e) if many else e.traits.group
        e.launch(
            "pooling.cl", "global_average_forward", (x.images * (group // vectors), x.blocks), x.read, y.write,
            x.images, x.height * x.width, group=group, **y.value_macros,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        groups, count = e.bands(x.rows, x.blocks, several=True)
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


@dataclass(frozen=True)
class Reduction(Op):
    """Base of reductions.

    Arguments:
    - `axis`: one or several axes of an example; 1 is the first, as 0 is the batch (default 1).
    - `keepdims`: leave them with size 1 (default True).

    Raises ShapeError for axes that the input doesn't have, or if none would be left.
    """

    axis: int | tuple[int, ...] = 1
    keepdims: bool = True

    def reduced(self, shape: Shape) -> tuple[int, ...]:
        """Indices of the reduced axes of an example, in order."""
        return tuple(sorted(positions(self.axis, shape)))

    def output_shape(self, shape: Shape) -> Shape:
        reduced = self.reduced(shape)
        if not reduced or (len(reduced) == len(shape) and not self.keepdims):
            raise ShapeError(f"{type(self).__name__} over axes {self.axis} of {shape}: name one, and leave one.")
        if self.keepdims:
            return tuple(1 if axis in reduced else n for axis, n in enumerate(shape))
        return tuple(n for axis, n in enumerate(shape) if axis not in reduced)

    def flops(self, shape: Shape) -> int:
        return prod(shape)

    def count(self, shape: Shape) -> int:
        """Values of an example that become one."""
        return prod(shape[axis] for axis in self.reduced(shape))

    def _axes(self, x: np.ndarray) -> tuple[int, ...]:
        """The reduced axes of a batch."""
        return tuple(axis + 1 for axis in self.reduced(x.shape[1:]))

    def _repeated(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """y in the shape of x."""
        return np.broadcast_to(y if self.keepdims else np.expand_dims(y, self._axes(x)), x.shape)

    def _sources(self, shape: Shape) -> list[int | None]:
        """For each axis of the input the output's; None if it is reduced."""
        reduced = self.reduced(shape)
        kept = iter(range(len(shape)))
        return [None if a in reduced else a if self.keepdims else next(kept) for a in range(len(shape))]

    def _emit_reduced(self, e: Emitter, kind: int, x: Tensor, y: Tensor, *more: Tensor, factor: float = 1.0) -> None:
        shape, reduced = x.shape[1:], self.reduced(x.shape[1:])
        steps = [(n, *stride) for n, stride in zip(shape, strides(shape), strict=True)]
        outer = [
            (1, 0, 0) if a in reduced else steps[a] for a in range(len(shape)) if self.keepdims or a not in reduced
        ]
        inner = _merged(steps[a] for a in reduced)
        aligned = outer[-1] == steps[-1] and shape[-1] > 1
        e.launch(
            "reductions.cl", "reduce", (y.rows * e.traits.members, y.blocks), x.read, In(e.table((*outer, *inner))),
            y.write, y.rows, len(outer), len(inner), self.count(shape), x.rows // x.images, y.rows // y.images,
            y.channels, int(aligned), float(factor), *(t.read for t in more), kind=kind,
        )  # fmt: skip

    def _emit_repeated(self, e: Emitter, dy: Tensor, target: Target, factor: float = 1.0) -> None:
        """Emit target = factor * dy, repeated along the reduced axes."""
        shape = target.tensor.shape[1:]
        axes = [
            Axis.repeated(n, 0) if source is None else Axis.whole(n, source)
            for n, source in zip(shape, self._sources(shape), strict=True)
        ]
        emit_gather(e, dy, axes, target, factor)


@dataclass(frozen=True)
class Sum(Reduction):
    """The sum over one or several axes of an example: keras.ops.sum."""

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].sum(self._axes(inputs[0]), keepdims=self.keepdims)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [self._repeated(inputs[0], dy).copy()], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit_reduced(e, ReductionKind.SUM, inputs[0], y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        self._emit_repeated(e, dy, only(targets))


@dataclass(frozen=True)
class Mean(Reduction):
    """The mean over one or several axes of an example: keras.ops.mean."""

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].mean(self._axes(inputs[0]), keepdims=self.keepdims)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        return [self._repeated(x, dy) / self.count(x.shape[1:])], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        factor = 1 / self.count(x.shape[1:])
        if self._keeps_a_row(x.shape[1:]):
            emit_summed(e, x, Target(y), factor)
        else:
            self._emit_reduced(e, ReductionKind.SUM, x, y, factor=factor)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        factor = 1 / self.count(x.shape[1:])
        if self._keeps_a_row(x.shape[1:]):
            emit_repeated(e, dy, target, factor)
        else:
            self._emit_repeated(e, dy, target, factor)

    def _keeps_a_row(self, shape: Shape) -> bool:
        """True if an image becomes one row or one column."""
        return self.keepdims and len(shape) == 3 and self.reduced(shape) in ((0,), (1,))


@dataclass(frozen=True)
class Max(Reduction):
    """The maximum over one or several axes of an example: keras.ops.max. Equal maxima share the gradient, as in
    TensorFlow and in torch.amax."""

    selects = True
    compares = True

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].max(self._axes(inputs[0]), keepdims=self.keepdims)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        found = x == self._repeated(x, self.reference_forward(inputs, weights))
        return [found / found.sum(self._axes(x), keepdims=True) * self._repeated(x, dy)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit_reduced(e, ReductionKind.MAXIMUM, inputs[0], y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        share = e.tensor("share of each maximum", y.shape)
        self._emit_reduced(e, ReductionKind.SHARE, x, share, y, dy)
        shape, stride = x.shape[1:], strides(y.shape[1:])
        sources = self._sources(shape)
        table = tuple((n, *((0, 0) if s is None else stride[s])) for n, s in zip(shape, sources, strict=True))
        groups, count = e.bands(x.rows, x.blocks)
        aligned = sources[-1] is not None and stride[sources[-1]] == (0, 1) and x.channels > 1
        e.launch(
            "reductions.cl", "pass_to_maxima", (groups, x.blocks), x.read, y.read, share.read, In(e.table(table)),
            x.rows, count, len(table), y.rows // y.images, x.rows // x.images, x.channels, int(aligned),
            *target.arguments, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class GlobalMaxPooling2D(Max):
    """(height, width, channels) -> (channels,): the maximum over all pixels, as in Keras.

    Arguments:
    - `axis`: height and width (default).
    - `keepdims`: True for (1, 1, channels) (default False).
    """

    axis: int | tuple[int, ...] = (1, 2)
    keepdims: bool = False

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"GlobalMaxPooling2D takes (height, width, channels), not {shape}.")
        return super().output_shape(shape)


def _merged(axes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(size, row stride, channel stride) of axes in order, where two that follow each other in memory are one."""
    found: list[tuple[int, int, int]] = []
    for size, row, channel in axes:
        if found and channel == 0 and found[-1][1] == size * row:
            found[-1] = (found[-1][0] * size, row, 0)
        else:
            found.append((size, row, channel))
    return found
