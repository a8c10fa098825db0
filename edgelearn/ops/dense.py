"""Dense: a matrix product over the last axis of a flat input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from . import pointwise
from .base import Arrays, Gradients, LinearOp, Weight, is_count
from .emit import Emitter, Epilogue
from .sums import Sum
from .target import Target
from .tensor import Shape, Tensor
from .transpose import KernelView


@dataclass(frozen=True)
class Dense(LinearOp):
    """Fully connected layer over (features,), as in Keras.

    Arguments:
    - `units`: outputs.
    - `use_bias`: add a bias to each unit (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS.

    Kernel: (features, units). Raises ShapeError if arguments and input don't fit.
    """

    units: int
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"

    has_values = True
    masks_sums = True

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ShapeError(f"Dense takes (features,), but the input has shape {shape}: put a Flatten before it.")
        if not is_count(self.units):
            raise ShapeError(f"Dense has 1 unit or more, not {self.units}.")
        return (self.units,)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        weights = {"kernel": Weight((shape[0], self.units), self.kernel_initializer, decays=True)}
        if self.use_bias:
            weights["bias"] = Weight((self.units,), "zeros")
        return weights

    def flops(self, shape: Shape) -> int:
        return 2 * shape[0] * self.units

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        y = inputs[0] @ weights["kernel"]
        return y + weights["bias"] if self.use_bias else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        gradients = {"kernel": inputs[0].T @ dy}
        if self.use_bias:
            gradients["bias"] = dy.sum(0)
        return [dy @ weights["kernel"].T], gradients

    def emit_linear(self, e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
        pointwise.emit_forward(e, x, kernel, y, epilogue)

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 1, scale)

    def backward_view(self, e: Emitter, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        transposes = e.compute.uses_units or e.compute.stores_halves
        if scale is None and not transposes and pointwise.has_few_rows(e, x):
            return KernelView(kernel)
        return super().backward_view(e, x, kernel, scale)

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Tensor, dy: Tensor, target: Target) -> None:
        if len(prepared.shape) == 3 or e.compute.uses_units:  # else few rows of floats
            pointwise.emit_backward_data(e, prepared, dy, target)
        else:
            pointwise.emit_few_rows_backward_data(e, prepared, dy, target)

    def emit_backward_weights(
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[Sum, Sum | None]:
        return pointwise.emit_backward_weights(e, x, dy, gradient, sums, add)
