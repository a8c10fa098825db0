"""Broadcasting as in NumPy: BroadcastTo, and what Mean needs for images of one row or one column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .operands import Gradient, Operand, aligned, broadcast, emit_combined, reduced
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class BroadcastTo(Op):
    """Repeats sizes of 1, and axes that are missing in front: keras.ops.broadcast_to. Sums and products repeat by
    themselves.

    Arguments:
    - `shape`: of the output, without the batch.

    Raises ShapeError for an input that can't be repeated to it.
    """

    shape: Shape

    selects = True

    def output_shape(self, shape: Shape) -> Shape:
        if broadcast("BroadcastTo", shape, self.shape) != tuple(self.shape):
            raise ShapeError(f"{shape} can't be repeated to {self.shape}: its sizes are those or 1.")
        return self.shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        x = aligned(inputs[0], 1 + len(self.shape))
        return np.broadcast_to(x, (len(x), *self.shape)).copy()

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        return [reduced(dy, aligned(x, dy.ndim).shape).reshape(x.shape)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x = Operand.of(inputs[0], y)
        emit_combined(e, "same", x, x, y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        operands = Operand.of(inputs[0], dy), Operand.of(dy, dy)
        Gradient("same", operands, True, "", dy).emit(e, only(targets))


def emit_repeated(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, repeated along height or width where x has 1 and the target more."""
    _emit(e, "repeat", x, target, factor, least=64)


def emit_summed(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, summed along height or width where the target has 1 and x more: the gradient of
    `emit_repeated`."""
    _emit(e, "sum_repeated", x, target, factor, least=8)


def _emit(e: Emitter, kernel: str, x: Tensor, target: Target, factor: float, least: int) -> None:
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks, least)
    e.launch(
        "broadcast.cl", kernel, (groups, y.blocks), x.read, y.rows, count, x.height, x.width, y.height, y.width,
        float(factor), *target.arguments, **target.macros,
    )  # fmt: skip
