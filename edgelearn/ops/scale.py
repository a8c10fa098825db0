"""Arithmetic with a weight, whose sizes of 1 are repeated, as in NumPy: Scale, Bias, PReLU; and a weight alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .emit import Emitter
from .gather import emit_zeros
from .operands import Gradient, Operand, broadcast, emit_combined, reduced
from .sums import Sum
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class WithWeight(Op):
    """Base of functions of an input and a weight."""

    function: ClassVar[str]  # of kernels/arithmetic.cl
    reads: ClassVar[tuple[str, str]]  # which of a (the input) and b (the weight) their gradients are computed from
    role: ClassVar[str]  # name of the weight
    initializer: ClassVar[str]

    def weight_shape(self, shape: Shape) -> Shape:
        """Shape of the weight for an input of `shape`."""
        raise NotImplementedError

    def value(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The function in NumPy."""
        raise NotImplementedError

    def derivatives(self, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """g times its derivatives by the input and by the weight."""
        raise NotImplementedError

    def output_shape(self, shape: Shape) -> Shape:
        weight = self.weight_shape(shape)
        if not weight or broadcast(type(self).__name__, shape, weight) != tuple(shape):
            raise ShapeError(
                f"A weight of {weight} can't be repeated to the size of {shape}: its sizes are those or 1."
            )
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {self.role: Weight(self.weight_shape(shape), self.initializer)}

    def flops(self, shape: Shape) -> int:
        return prod(shape)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.value(inputs[0], weights[self.role])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        w = weights[self.role]
        dx, dw = self.derivatives(inputs[0], w, dy)
        return [dx], {self.role: reduced(dw, w.shape)}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        emit_combined(e, self.function, *self._operands(inputs, y), y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> list[Sum]:
        operands, (dx, dw) = self._operands(inputs, dy), targets
        if dx:
            Gradient(self.function, operands, True, self.reads[0], dy).emit(e, dx)
        return [Gradient(self.function, operands, False, self.reads[1], dy).emit_for_weight(e, dw)] if dw else []

    def _operands(self, inputs: list[Tensor], y: Tensor) -> tuple[Operand, Operand]:
        x, w = inputs
        return Operand.of(x, y), Operand.of(w, y, is_weight=True)


@dataclass(frozen=True)
class Repeated(WithWeight):
    """Base of functions whose weight has a shape of its own, which is repeated to the input's.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).
    """

    shape: Shape | None = None

    def weight_shape(self, shape: Shape) -> Shape:
        return shape[-1:] if self.shape is None else self.shape


@dataclass(frozen=True)
class Scale(Repeated):
    """x * scale, with a trained weight; freeze it for a constant.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).

    Raises ShapeError for a shape that can't be repeated to the input's.
    """

    function = "multiply"
    reads = ("b", "a")
    role = "scale"
    initializer = "ones"

    def value(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x * w

    def derivatives(self, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g * w, g * x


@dataclass(frozen=True)
class Bias(Repeated):
    """x + bias, with a trained weight; freeze it for a constant.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).

    Raises ShapeError for a shape that can't be repeated to the input's.
    """

    function = "add"
    reads = ("", "")
    role = "bias"
    initializer = "zeros"

    def value(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x + w

    def derivatives(self, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g, g


@dataclass(frozen=True)
class PReLU(WithWeight):
    """x where it is positive, else alpha * x with a trained alpha (He et al. 2015).

    Arguments:
    - `shared_axes`: axes along which alpha is the same, where 1 is the first, as in Keras: (1, 2) for one alpha of each
      channel of an image (default: none).

    Raises ShapeError for axes that the input doesn't have.
    """

    shared_axes: tuple[int, ...] = ()

    function = "prelu"
    reads = ("ab", "a")
    role = "alpha"
    initializer = "zeros"

    def weight_shape(self, shape: Shape) -> Shape:
        if not set(self.shared_axes) <= set(range(1, len(shape) + 1)):
            raise ShapeError(f"PReLU shares axes from 1 to {len(shape)} of {shape}, not {self.shared_axes}.")
        return tuple(1 if axis in self.shared_axes else n for axis, n in enumerate(shape, start=1))

    def value(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, w * x)

    def derivatives(self, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(x > 0, g, w * g), np.where(x > 0, 0.0, x * g)


@dataclass(frozen=True)
class Constant(Op):
    """A trained weight, the same for each example whatever the input holds, such as a class token; freeze it for a
    constant.

    Arguments:
    - `shape`: of the weight, and of the output.

    Raises ShapeError for a shape without axes.
    """

    shape: Shape

    role: ClassVar[str] = "value"

    def weight_shape(self, shape: Shape) -> Shape:
        return self.shape

    def output_shape(self, shape: Shape) -> Shape:
        if not self.shape or not all(map(is_count, self.shape)):
            raise ShapeError(f"A constant's shape is whole numbers of at least 1, not {self.shape}.")
        return self.shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"value": Weight(self.shape, "zeros")}

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.broadcast_to(weights["value"], (len(inputs[0]), *self.shape)).copy()

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [np.zeros_like(inputs[0])], {"value": dy.sum(0)}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        weight = Operand.of(inputs[1], y, is_weight=True)
        emit_combined(e, "same", weight, weight, y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> list[Sum]:
        (_, w), (dx, dw) = inputs, targets
        if dx:
            emit_zeros(e, dy, dx)
        operands = Operand.of(w, dy, is_weight=True), Operand.of(dy, dy)
        return [Gradient("same", operands, True, "", dy).emit_for_weight(e, dw)] if dw else []
