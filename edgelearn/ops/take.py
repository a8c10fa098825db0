"""Rows by computed numbers: Take; Embedding, whose rows are trained; and ReverseEmbedding, products with these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from . import linear
from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .emit import Compute, Emitter, Epilogue, GradientSum, start_sum
from .products import Geometry
from .shapes import Axis, emit_gather, emit_zeros
from .target import Target
from .tensor import BLOCK, Shape, Tensor
from .window import Window

SEARCHERS = 512  # work-items a compute unit of a GPU that look for the rows of a table's gradient


@dataclass(frozen=True)
class Take(Op):
    """Parts of the first axis of an example, (size, ..., channels), by the numbers of another input, (count,):
    keras.ops.take, of each example by itself. The output is (count, ..., channels).

    Numbers are rounded to whole ones; negative ones count from the end; one that isn't there gives NaN. They have no
    gradient. Raises ShapeError for other shapes.
    """

    takes_numbers = (1,)

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) != 2 or len(shapes[0]) < 2 or len(shapes[1]) != 1:
            given = " and ".join(map(str, shapes))
            raise ShapeError(f"Take takes values (size, ..., channels) and numbers (count,), not {given}.")
        return (*shapes[1], *shapes[0][1:])

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        x, numbers = inputs
        return np.stack([_taken(own, row) for own, row in zip(x, numbers, strict=True)])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        x, numbers = inputs
        shares = (_given_back(len(own), row, g) for own, row, g in zip(x, numbers, dy, strict=True))
        return [np.stack(list(shares)), np.zeros_like(numbers)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, numbers = inputs
        _emit_take(e, x, numbers, y, x.shape[1], shared=False)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x, numbers), (dx, dnumbers) = inputs, targets
        if dx is not None:
            groups, count = e.bands(x.rows, x.blocks)
            size, inner = x.shape[1], prod(x.shape[2:-1])
            e.launch(
                "take.cl", "give_back", (groups, x.blocks), numbers.read, dy.read, x.rows, count, numbers.images,
                numbers.channels, size, inner, *dx.arguments, **dx.macros,
            )  # fmt: skip
        if dnumbers is not None:
            emit_zeros(e, dy, dnumbers)


@dataclass(frozen=True)
class Embedding(Op):
    """A trained row for each number of the input, (count,) -> (count, output_dim), as in Keras.

    Numbers are rounded to whole ones; negative ones count from the end; one that isn't there gives NaN.

    Arguments:
    - `input_dim`: number of rows, one more than the largest number.
    - `output_dim`: channels of a row.

    Raises ShapeError for other settings or shapes.
    """

    takes_numbers = (0,)

    input_dim: int
    output_dim: int

    def __post_init__(self) -> None:
        if not (is_count(self.input_dim) and is_count(self.output_dim)):
            raise ShapeError(f"Embedding has 1 row and 1 channel or more, not {self.input_dim} and {self.output_dim}.")

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ShapeError(f"Embedding takes numbers (count,), not {shape}: put a Flatten before it.")
        return (*shape, self.output_dim)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"embeddings": Weight((self.input_dim, self.output_dim))}

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.stack([_taken(weights["embeddings"], row) for row in inputs[0]])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        rows = dy.reshape(-1, self.output_dim)
        return [np.zeros_like(inputs[0])], {"embeddings": _given_back(self.input_dim, inputs[0].reshape(-1), rows)}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        numbers, table = inputs
        _emit_take(e, table, numbers, y, self.input_dim, shared=True)

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> list[GradientSum]:
        (numbers, _), (dnumbers, dtable) = inputs, targets
        if dnumbers is not None:
            emit_zeros(e, dy, dnumbers)
        if dtable is None:
            return []
        groups, _ = e.split_rows(dy.rows, self.input_dim * dy.blocks, items=SEARCHERS if e.traits.gpu else 0)
        sums, count = start_sum(e, dtable.tensor, dy.rows, groups)
        share = sums.access(dtable.accumulate)
        ranges, span = e.bands(self.input_dim, dy.blocks)
        e.launch(
            "take.cl", "give_back_shared", (ranges * sums.groups, dy.blocks), numbers.read, dy.read, share,
            self.input_dim, count, numbers.images, numbers.channels, sums.groups, ranges, span,
            accumulate=dtable.accumulate,
        )  # fmt: skip
        return [sums]


@dataclass(frozen=True)
class ReverseEmbedding(Op):
    """The products of each step's channels with all rows of a table, (..., channels) -> (..., input_dim): logits by the
    table of an Embedding, which the layer shares (Press and Wolf 2017, "tied weights").

    >>> network.add("table", Embedding(65, 128))
    >>> network.add("logits", ReverseEmbedding(65), "last", shares="table")

    Arguments:
    - `input_dim`: number of rows, as of the Embedding.

    Raises ShapeError for another setting.
    """

    input_dim: int

    def output_shape(self, shape: Shape) -> Shape:
        if not is_count(self.input_dim):
            raise ShapeError(f"ReverseEmbedding has 1 row or more, not {self.input_dim}.")
        return (*shape[:-1], self.input_dim)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"embeddings": Weight((self.input_dim, shape[-1]))}

    def flops(self, shape: Shape) -> int:
        return 2 * prod(shape) * self.input_dim

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0] @ weights["embeddings"].T

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        x, rows = inputs[0].reshape(-1, inputs[0].shape[-1]), dy.reshape(-1, self.input_dim)
        return [dy @ weights["embeddings"]], {"embeddings": rows.T @ x}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, table = inputs
        turned = e.tensor("turned table", (1, x.channels, self.input_dim))
        axes = [Axis.whole(x.channels, 1), Axis.whole(self.input_dim, 0)]
        emit_gather(e, replace(table, shape=(1, *table.shape)), axes, Target(turned))
        with _in_floats(e):
            kernel = replace(turned, shape=turned.shape[1:])
            linear.emit_forward(e, _rows_of(x), x, kernel, y, Epilogue())

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> list[GradientSum]:
        (x, table), (dx, dtable) = inputs, targets
        with _in_floats(e):
            if dx is not None:
                kernel = replace(table, shape=(1, *table.shape))
                linear.emit_backward_data(e, _rows_of(x), kernel, dy, dx)
            if dtable is None:
                return []
            return [linear.emit_backward_weights(e, _rows_of(x), dy, x, dtable.tensor, None, dtable.accumulate)[0]]


def _rows_of(x: Tensor) -> Geometry:
    return Geometry("dense", 1, Window.pointwise(1, x.rows))


@contextmanager
def _in_floats(e: Emitter) -> Iterator[None]:
    """Products in float32, whatever the plan's other ones are in."""
    before, e.compute = e.compute, Compute()
    try:
        yield
    finally:
        e.compute = before


def _emit_take(e: Emitter, x: Tensor, numbers: Tensor, y: Tensor, size: int, shared: bool) -> None:
    groups, count = e.bands(y.rows, y.blocks)
    padded = y.channels % BLOCK != 0
    e.launch(
        "take.cl", "take", (groups, y.blocks), x.read, numbers.read, y.rows, count,
        *((y.channels,) if padded else ()), numbers.images, numbers.channels, size, prod(y.shape[2:-1]), int(shared),
        *Target(y).arguments, padded=padded, **Target(y).macros,
    )  # fmt: skip


def places_of(numbers: np.ndarray, size: int) -> np.ndarray:
    """Rows that numbers name, -1 for one that isn't there."""
    nearest = np.trunc(numbers + np.where(numbers < 0, -0.5, 0.5))
    there = (nearest >= -size) & (nearest < size)
    return np.where(there, np.where(nearest < 0, nearest + size, nearest), -1).astype(int)


def _taken(table: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    places = places_of(numbers, len(table))
    rows = table[places]
    rows[places < 0] = np.nan
    return rows


def _given_back(size: int, numbers: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The sum of dy's rows that come from each of `size` rows."""
    places = places_of(numbers, size)
    total = np.zeros((size, *dy.shape[1:]), dy.dtype)
    np.add.at(total, places[places >= 0], dy[places >= 0])
    return total
