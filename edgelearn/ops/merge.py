"""Add and Concatenate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets
from .broadcast import emit_repeated, emit_summed
from .copy import emit_copy
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Add(Op):
    """The sum of two or more tensors. As in Keras, heights and widths of 1 are broadcast."""

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2 or (len(set(shapes)) > 1 and not _broadcast(shapes)):
            raise ShapeError(
                f"Add takes two or more inputs of the same shape, or images of the same channels where heights and "
                f"widths that differ are 1, not {', '.join(map(str, shapes))}."
            )
        return tuple(map(max, *shapes))

    def flops(self, *shapes: Shape) -> int:
        return (len(shapes) - 1) * prod(self.output_shape(*shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return reduce(np.add, inputs)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        repeated = [tuple(axis for axis, n in enumerate(x.shape) if n != dy.shape[axis]) for x in inputs]
        return [dy.sum(axes, keepdims=True) for axes in repeated], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        whole = [x for x in inputs if x.shape == y.shape]
        repeated = [x for x in inputs if x.shape != y.shape]
        started = len(whole) > 1
        if started:
            a, b, *whole = whole
            groups, count = e.bands(y.rows, y.blocks, 64)
            e.launch(
                "elementwise.cl", "add", (groups, y.blocks), a.read, b.read, y.write, y.rows, count,
            )  # fmt: skip
        for x in whole + repeated:
            emit = emit_copy if x.shape == y.shape else emit_repeated
            emit(e, x, Target(y, accumulate=started))
            started = True

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        for x, target in zip(inputs, targets, strict=True):
            if target is not None:
                emit = emit_copy if x.shape == dy.shape else emit_summed
                emit(e, dy, target)


@dataclass(frozen=True)
class Concatenate(Op):
    """Concatenates the channels of two or more tensors of equal height and width."""

    selects = True

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2 or len({shape[:-1] for shape in shapes}) > 1:
            raise ShapeError(
                f"Concatenate takes two or more inputs that differ only in channels, not {', '.join(map(str, shapes))}."
            )
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.concatenate(inputs, -1)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return np.split(dy, _offsets(inputs)[1:], -1), {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        """The first input's launch also writes zeros in the places of the others."""
        for x, offset in zip(inputs, _offsets(inputs), strict=True):
            blocks = y.blocks if offset == 0 else -(-(offset + x.channels) // y.block) - offset // y.block
            groups, count = e.bands(x.rows, blocks, 64)
            e.launch(
                "concatenate.cl", "concatenate_forward", (groups, blocks), x.read, y.update if offset else y.write,
                x.rows, count, x.channels, offset, whole=True,
            )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        for x, offset, target in zip(inputs, _offsets(inputs), targets, strict=True):
            if target is None:
                continue
            groups, count = e.bands(x.rows, x.blocks, 64)
            e.launch(
                "concatenate.cl", "concatenate_backward", (groups, x.blocks), dy.read, x.rows, count, x.channels,
                offset, *target.arguments, whole=True, **target.macros,
            )  # fmt: skip


def _broadcast(shapes: tuple[Shape, ...]) -> bool:
    """True for images that can be broadcast to one size."""
    if any(len(shape) != 3 for shape in shapes):
        return False
    heights, widths, channels = (set(sizes) for sizes in zip(*shapes, strict=True))
    return len(heights - {1}) <= 1 and len(widths - {1}) <= 1 and len(channels) == 1


def _offsets(inputs: list[Tensor] | list[np.ndarray]) -> list[int]:
    """The first channel of each input."""
    return list(accumulate((x.shape[-1] for x in inputs[:-1]), initial=0))
