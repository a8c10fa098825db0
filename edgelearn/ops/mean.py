"""The mean along one axis of an image."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .broadcast import emit_repeated, emit_summed
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Mean(Op):
    """The mean of (height, width, channels) over one axis, whose size becomes 1: keras.ops.mean with keepdims=True.

    Arguments:
    - `axis`: 1 for the height (default), 2 for the width.
    """

    axis: int = 1

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or self.axis not in (1, 2):
            raise ShapeError(
                f"Mean takes (height, width, channels) and axis 1 or 2, not {shape} and axis {self.axis}. For both "
                f"axes at once there is GlobalAveragePooling2D."
            )
        return tuple(1 if axis == self.axis else n for axis, n in enumerate(shape, start=1))

    def flops(self, shape: Shape) -> int:
        return prod(shape)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].mean(self.axis, keepdims=True)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        return [np.broadcast_to(dy / x.shape[self.axis], x.shape).copy()], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        emit_summed(e, x, Target(y), 1 / x.shape[self.axis])

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        emit_repeated(e, dy, target, 1 / x.shape[self.axis])
