"""Arithmetic of two tensors: Subtract, Multiply, Divide, Maximum, Minimum. Sizes of 1 are repeated, as in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets
from .emit import Emitter
from .operands import Gradient, Operand, aligned, broadcast, emit_combined, reduced
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Arithmetic(Op):
    """Base of functions of two tensors, a and b."""

    function: ClassVar[str]  # of kernels/arithmetic.cl
    reads: ClassVar[tuple[str, str]]  # which of a and b the gradients of a and of b are computed from
    keeps_zero: ClassVar[bool] = True  # of two zeros

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The function in NumPy."""
        raise NotImplementedError

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """g times its derivatives by a and by b."""
        raise NotImplementedError

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) != 2:
            raise ShapeError(f"{type(self).__name__} takes two inputs, not {len(shapes)}.")
        return broadcast(type(self).__name__, *shapes)

    def flops(self, *shapes: Shape) -> int:
        return prod(self.output_shape(*shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.value(*self._aligned(inputs))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        a, b = self._aligned(inputs)
        found = zip(self.derivatives(a, b, dy), (a, b), inputs, strict=True)
        return [reduced(g, operand.shape).reshape(x.shape) for g, operand, x in found], {}

    def _aligned(self, inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        rank = max(x.ndim for x in inputs)
        return aligned(inputs[0], rank), aligned(inputs[1], rank)

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        a, b = (Operand.of(x, y) for x in inputs)
        emit_combined(e, self.function, a, b, y, not self.keeps_zero)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        operands = [Operand.of(x, dy) for x in inputs]
        for first, reads, target in zip((True, False), self.reads, targets, strict=True):
            if target is not None:
                Gradient(self.function, operands, first, reads, dy, not self.keeps_zero).emit(e, target)


@dataclass(frozen=True)
class Subtract(Arithmetic):
    """a - b."""

    function = "subtract"
    reads = ("", "")

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g, -g


@dataclass(frozen=True)
class Multiply(Arithmetic):
    """a * b: of (height, width, channels) and (1, 1, channels), it is how squeeze-and-excitation weighs channels."""

    function = "multiply"
    reads = ("b", "a")

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g * b, g * a


@dataclass(frozen=True)
class Divide(Arithmetic):
    """a / b."""

    function = "divide"
    reads = ("b", "ab")
    keeps_zero = False

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a / b

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g / b, -g * a / b**2


@dataclass(frozen=True)
class Maximum(Arithmetic):
    """The larger of a and b. Where they are equal a has the gradient, as in TensorFlow."""

    function = "maximum"
    reads = ("ab", "ab")

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a, b)

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g * (a >= b), g * (a < b)


@dataclass(frozen=True)
class Minimum(Arithmetic):
    """The smaller of a and b. Where they are equal a has the gradient, as in TensorFlow."""

    function = "minimum"
    reads = ("ab", "ab")

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.minimum(a, b)

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return g * (a <= b), g * (a > b)
