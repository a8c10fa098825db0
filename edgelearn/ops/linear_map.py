"""Base of ops that multiply images by one matrix along the height and one along the width."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .jobs import Row
from .target import Target
from .tensor import Shape, Tensor

Matrices = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LinearMap(Op):
    """Base of linear maps of (height, width, channels) that are the product of one of rows and one of columns."""

    def matrices(self, shape: Shape) -> Matrices:
        """(height of the output, height), (width of the output, width) for an input of `shape`; mostly zeros."""
        raise NotImplementedError

    def flops(self, shape: Shape) -> int:
        rows, columns = (int(np.count_nonzero(matrix)) for matrix in self.matrices(shape))
        return 2 * rows * columns * shape[-1]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        rows, columns = self.matrices(inputs[0].shape[1:])
        return np.einsum("yh,nhwc,xw->nyxc", rows, inputs[0], columns, optimize=True)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        rows, columns = self.matrices(inputs[0].shape[1:])
        return [np.einsum("yh,nyxc,xw->nhwc", rows, dy, columns, optimize=True)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        rows, columns = self.matrices(x.shape[1:])
        _emit(e, x, rows, columns, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        rows, columns = self.matrices(inputs[0].shape[1:])
        _emit(e, dy, rows.T, columns.T, only(targets))


def _emit(e: Emitter, x: Tensor, rows: np.ndarray, columns: np.ndarray, target: Target) -> None:
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks)
    tables = (In(e.table(_sparse(matrix))) for matrix in (rows, columns))
    e.launch(
        "linear_map.cl", "map_image", (groups, y.blocks), x.read, *tables, y.rows, count, x.height, x.width, y.height,
        y.width, *target.arguments, **target.macros,
    )  # fmt: skip


def _sparse(matrix: np.ndarray) -> tuple[Row, ...]:
    """The table of a matrix in kernels/linear_map.cl."""
    places = [np.flatnonzero(row) for row in matrix]
    ends = list(accumulate(map(len, places), initial=len(matrix)))
    entries = (
        (int(place), int(np.float32(row[place]).view(np.int32)))
        for row, found in zip(matrix, places, strict=True)
        for place in found
    )
    return (*pairwise(ends), *entries)
