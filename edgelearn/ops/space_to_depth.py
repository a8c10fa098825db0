"""SpaceToDepth: invertible down-sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class SpaceToDepth(Op):
    """Each square of `size` x `size` pixels becomes one pixel that has all their channels, pixel by pixel as in
    TensorFlow: the invertible down-sampling of Jacobsen et al. 2018, "i-RevNet" (arXiv 1802.07088, figure 2)."""

    size: int = 2

    selects = True
    invertible = True

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or self.size < 1 or shape[0] % self.size or shape[1] % self.size:
            raise ShapeError(
                f"SpaceToDepth takes (height, width, channels) whose height and width {self.size} divides, not {shape}."
            )
        return (shape[0] // self.size, shape[1] // self.size, shape[2] * self.size**2)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,) = inputs
        n, height, width, _ = x.shape
        squares = x.reshape(n, height // self.size, self.size, width // self.size, self.size, -1).swapaxes(2, 3)
        return squares.reshape(n, height // self.size, width // self.size, -1)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        n, height, width, _ = dy.shape
        squares = dy.reshape(n, height, width, self.size, self.size, -1).swapaxes(2, 3)
        return [squares.reshape(inputs[0].shape)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit(e, inputs[0], Target(y), back=False)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        self._emit(e, dy, only(targets), back=True)

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        self._emit(e, y, Target(x), back=True)

    def _emit(self, e: Emitter, x: Tensor, target: Target, back: bool) -> None:
        y = target.tensor
        groups, count = e.bands(y.rows, y.blocks)
        e.launch(
            "space_to_depth.cl", "space_to_depth", (groups, y.blocks), x.read, y.rows, count, y.height, y.width,
            y.channels, x.channels, self.size, *target.arguments, whole=True, back=back, **target.macros,
        )  # fmt: skip
