"""Global average pooling; MaxPooling2D and AveragePooling2D."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from . import tiles
from .base import Arrays, PlainOp
from .emit import Emitter, GradientTarget
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class GlobalAveragePooling2D(PlainOp):
    """(height, width, channels) -> (channels,): the mean over all pixels."""

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"GlobalAveragePooling2D takes (height, width, channels), not {shape}.")
        return (shape[-1],)

    def flops(self, shape: Shape) -> int:
        return shape[0] * shape[1] * shape[2]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0].mean((1, 2))

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray
    ) -> tuple[list[np.ndarray], Arrays]:
        (x,) = inputs
        return [np.broadcast_to(dy[:, None, None] / (x.shape[1] * x.shape[2]), x.shape).copy()], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "pooling.cl", "global_average_forward", (x.images, x.blocks), x.read, y.write, x.images,
            x.height * x.width, group=tiles.group_size(e.traits),
        )  # fmt: skip

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        (x,), (target,) = inputs, targets
        e.launch(
            "pooling.cl", "global_average_backward", (x.images, x.blocks), dy.read, x.images, x.height * x.width,
            *target.arguments, group=tiles.group_size(e.traits), **target.macros,
        )  # fmt: skip
