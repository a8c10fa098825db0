"""Flatten and Reshape, in C order as in Keras."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Flatten(Op):
    """(..., channels) -> (features,)."""

    selects = True
    has_values = True

    def output_shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,) = inputs
        return x.reshape(len(x), *self.output_shape(x.shape[1:]))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy.reshape(inputs[0].shape)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        _emit(e, inputs[0], Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        _emit(e, dy, only(targets))


@dataclass(frozen=True)
class Reshape(Flatten):
    """Changes the shape to `target_shape`, one of whose sizes may be -1, the size that is left."""

    target_shape: tuple[int, ...] = (-1,)

    def output_shape(self, shape: Shape) -> Shape:
        known = prod(n for n in self.target_shape if n != -1)
        sizes_fit = self.target_shape.count(-1) <= 1 and all(n > 0 or n == -1 for n in self.target_shape)
        if not self.target_shape or not sizes_fit or prod(shape) % known:
            raise ShapeError(f"{shape} has {prod(shape)} values, which cannot be reshaped to {self.target_shape}.")
        target = tuple(prod(shape) // known if n == -1 else n for n in self.target_shape)
        if prod(target) != prod(shape):
            raise ShapeError(f"{shape} has {prod(shape)} values, but {self.target_shape} has {prod(target)}.")
        return target


def _emit(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = the values of x in the target's shape."""
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks)
    e.launch(
        "reshape.cl", "reshape", (groups, y.blocks), x.read, y.rows, count, x.rows // x.images, x.channels,
        y.rows // y.images, y.channels, *target.arguments, whole=True, **target.macros,
    )  # fmt: skip
