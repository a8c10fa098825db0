"""Arithmetic of two tensors: Subtract, Multiply, Divide, Maximum, Minimum, Greater, Less; and Where, of three. Sizes of
1 are repeated, as in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets
from .emit import Emitter
from .operands import Gradient, Operand, aligned, broadcast, emit_chosen, emit_combined, reduced
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


@dataclass(frozen=True)
class Comparison(Arithmetic):
    """Base of comparisons: 1 where they hold, else 0. No gradient passes."""

    reads = ("", "")

    def derivatives(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(g), np.zeros_like(g)


@dataclass(frozen=True)
class Greater(Comparison):
    """1 where a > b, else 0; no gradient passes."""

    function = "greater"

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a > b).astype(np.result_type(a, b))


@dataclass(frozen=True)
class Less(Comparison):
    """1 where a < b, else 0; no gradient passes."""

    function = "less"

    def value(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a < b).astype(np.result_type(a, b))


@dataclass(frozen=True)
class Where(Op):
    """The second input where the first one, the condition, isn't 0, and the third where it is: keras.ops.where. What
    isn't chosen has no part, not even as NaN, and no gradient; the condition has none."""

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) != 3:
            raise ShapeError(f"Where takes a condition and two inputs to choose from, not {len(shapes)} inputs.")
        return broadcast("Where", *shapes)

    def flops(self, *shapes: Shape) -> int:
        return prod(self.output_shape(*shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        condition, a, b = self._aligned(inputs)
        return np.where(condition != 0, a, b)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        chosen = self._aligned(inputs)[0] != 0
        found = (np.zeros_like(dy), np.where(chosen, dy, 0), np.where(chosen, 0, dy))
        sums = zip(found, self._aligned(inputs), inputs, strict=True)
        return [reduced(g, operand.shape).reshape(x.shape) for g, operand, x in sums], {}

    def _aligned(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        rank = max(x.ndim for x in inputs)
        return [aligned(x, rank) for x in inputs]

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        condition, a, b = (Operand.of(x, y) for x in inputs)
        emit_chosen(e, condition, a, b, y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        condition, a, b = (Operand.of(x, dy) for x in inputs)
        dc, da, db = targets
        for function, operand, first, reads, target in (
            ("where", a, True, "", dc), ("where", a, False, "a", da), ("otherwise", b, False, "a", db),
        ):  # fmt: skip
            if target is not None:
                Gradient(function, (condition, operand), first, reads, dy).emit(e, target)
