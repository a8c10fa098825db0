"""Matrix products: Dense, by a trained matrix, and MatMul, of two computed ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, LinearOp, Op, Targets, Weight, is_count
from .emit import Emitter
from .families import has_few_rows
from .formats import KernelView
from .products import Geometry
from .shapes import Axis, emit_gather
from .target import Target
from .tensor import Shape, Tensor, ceil_div
from .window import Window


@dataclass(frozen=True)
class Dense(LinearOp):
    """Fully connected layer over the last axis of (..., features), as in Keras: each row of features by itself.

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
        if not is_count(self.units):
            raise ShapeError(f"Dense has 1 unit or more, not {self.units}.")
        return (*shape[:-1], self.units)

    def kernel(self, shape: Shape) -> Weight:
        return Weight((shape[-1], self.units), self.kernel_initializer, decays=True)

    def flops(self, shape: Shape) -> int:
        return 2 * prod(shape) * self.units

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        return x @ kernel

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return dy @ kernel.T, x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def geometry(self, x: Tensor) -> Geometry:
        return Geometry("dense", 1, Window.pointwise(1, x.rows))

    @property
    def has_integer_kernels(self) -> bool:
        return True

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 1, scale)

    def backward_view(self, e: Emitter, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        transposes = e.compute.uses_units or e.compute.stores_halves
        if scale is None and not transposes and has_few_rows(e, x):
            return KernelView(kernel)
        return super().backward_view(e, x, kernel, scale)


TILE = 4  # as in kernels/matmul.cl


@dataclass(frozen=True)
class MatMul(Op):
    """The product of the last two axes of two inputs, (..., m, k) and (..., k, n), as keras.ops.matmul: of attention's
    queries and keys. Other axes have the same sizes. With a trained matrix it is a Dense, or a Conv2D of size 1.

    Raises ShapeError for other shapes.
    """

    def output_shape(self, *shapes: Shape) -> Shape:
        fits = len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) >= 2
        if not fits or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-2]:
            given = " and ".join(map(str, shapes))
            raise ShapeError(
                f"MatMul takes matrices (..., m, k) and (..., k, n) with the same axes before, not {given}."
            )
        return (*shapes[0][:-1], shapes[1][-1])

    def flops(self, *shapes: Shape) -> int:
        return 2 * prod(shapes[0]) * shapes[1][-1]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0] @ inputs[1]

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        a, b = inputs
        return [dy @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ dy], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        a, b = inputs
        _emit(e, a, b, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (a, b), (da, db) = inputs, targets
        if da is not None:
            _emit(e, dy, _transposed(e, b), da)
        if db is not None:
            _emit(e, a, dy, db, across=True)


def _emit(e: Emitter, a: Tensor, b: Tensor, target: Target, across: bool = False) -> None:
    """Emit target = a b, or, `across`, the transposed a times b."""
    y, k = target.tensor, b.shape[-2]
    m = y.shape[-2]
    images = y.rows // m
    e.launch(
        "matmul.cl", "multiply", (images * ceil_div(m, TILE), y.blocks), a.read, b.read, images, m, k,
        *target.arguments, flops=2 * y.rows * y.channels * k, across=across, **target.macros,
    )  # fmt: skip


def _transposed(e: Emitter, x: Tensor) -> Tensor:
    """`x` with its last two axes swapped."""
    *outer, m, k = x.shape
    turned = e.tensor("transposed", (*outer, k, m))
    order = [*range(len(outer) - 1), len(outer), len(outer) - 1]
    emit_gather(e, x, [Axis.whole(x.shape[1 + axis], axis) for axis in order], Target(turned))
    return turned
