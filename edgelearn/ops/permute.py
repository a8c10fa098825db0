"""Transpose: another order of an example's axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .axes import positions
from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .gather import Axis, emit_gather
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Transpose(Op):
    """Permutes the axes of an example, as keras.layers.Permute.

    Arguments:
    - `axes`: for each axis of the output, the input's; 1 is the first, as 0 is the batch. (2, 1, 3) swaps height and
      width.

    Raises ShapeError if `axes` doesn't name each axis of the input once.
    """

    axes: tuple[int, ...]

    selects = True
    invertible = True

    def _order(self, shape: Shape) -> tuple[int, ...]:
        order = positions(self.axes, shape)
        if len(order) != len(shape):
            raise ShapeError(f"Transpose names each of the {len(shape)} axes of {shape} once, not {self.axes}.")
        return order

    def output_shape(self, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in self._order(shape))

    def _with_batch(self, shape: Shape) -> tuple[int, ...]:
        return (0, *(axis + 1 for axis in self._order(shape)))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].transpose(self._with_batch(inputs[0].shape[1:]))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy.transpose(np.argsort(self._with_batch(inputs[0].shape[1:])))], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        _emit(e, inputs[0], self._order(inputs[0].shape[1:]), Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        self._emit_back(e, dy, only(targets))

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        self._emit_back(e, y, Target(x))

    def _emit_back(self, e: Emitter, y: Tensor, target: Target) -> None:
        order = self._order(target.tensor.shape[1:])
        _emit(e, y, tuple(order.index(axis) for axis in range(len(order))), target)


def _emit(e: Emitter, x: Tensor, order: tuple[int, ...], target: Target) -> None:
    """Emit target = x with its axes in this order."""
    emit_gather(e, x, [Axis.whole(x.shape[1 + axis], axis) for axis in order], target)
