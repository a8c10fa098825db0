"""Layers with frozen weights in 4 to 16 bits: Dense and Embedding over a matrix in one of GGUF's block formats.

The weights stay as the file has them, also on the device: kernels decode a few rows and columns at a time. Gradients
pass through them to the input; they get none themselves, so that what is trained are other layers, such as low-rank
adapters (edgelearn/graph/rewrites.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .block_formats import BLOCK_BYTES, bytes_shape, decode
from .emit import Emitter
from .shapes import emit_zeros
from .take import places_of
from .target import emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div

FEW_ROWS = 4  # up to so many, weights are decoded for one sum each


@dataclass(frozen=True)
class FrozenDense(Op):
    """x Wᵀ over the last axis of (..., features), as a Dense without bias, by frozen weights W in a block format: a row
    for each unit, as files of GGUF have them. It may share the rows of a FrozenEmbedding.

    Arguments:
    - `units`: outputs.
    - `format`: "F16", "Q4_0", "Q4_1" or "Q8_0" (default): see edgelearn.ops.block_formats.

    Weights: rows, uint8 (units, bytes of a row). Raises ShapeError for other settings, or features that are no multiple
    of 32.
    """

    units: int
    format: str = "Q8_0"

    def output_shape(self, shape: Shape) -> Shape:
        if not is_count(self.units):
            raise ShapeError(f"FrozenDense has 1 unit or more, not {self.units}.")
        bytes_shape((self.units, shape[-1]), self.format)
        return (*shape[:-1], self.units)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"rows": Weight((self.units, shape[-1]), trainable=False, format=self.format)}

    def flops(self, shape: Shape) -> int:
        return 2 * prod(shape) * self.units

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0] @ decode(weights["rows"], self.format).T.astype(inputs[0].dtype)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy @ decode(weights["rows"], self.format).astype(dy.dtype)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, w = inputs
        if x.rows <= FEW_ROWS:
            self._emit(e, "frozen_few_rows", (y.blocks,), x, w, y, x.channels, rows=x.rows)
        else:
            self._emit_product(e, "frozen_forward", x, w, y, x.channels)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x, w), target = inputs, targets[0]
        if target is None:
            return
        if target.mask is None:
            self._emit_product(e, "frozen_backward_data", dy, w, target.tensor, x.channels, target.accumulate)
            return
        gradient = e.tensor("gradient before its mask", x.shape)
        self._emit_product(e, "frozen_backward_data", dy, w, gradient, x.channels)
        emit_copy(e, gradient, target)

    def _emit_product(
        self, e: Emitter, kernel: str, x: Tensor, w: Tensor, y: Tensor, k: int, accumulate: bool = False
    ) -> None:  # fmt: skip
        wide = not e.traits.gpu and e.traits.vector_width >= BLOCK
        rows, panels = (8, 2) if wide else (4, 1)
        items = ceil_div(y.blocks, panels)
        groups, count = e.split_rows(x.rows, items, least=rows if e.traits.gpu else 32)
        self._emit(
            e, kernel, (groups, items), x, w, y, k, count, accumulate, rows=min(rows, x.rows), panels=panels
        )  # fmt: skip

    def _emit(
        self, e: Emitter, kernel: str, grid: tuple[int, ...], x: Tensor, w: Tensor, y: Tensor, k: int, count: int = 0,
        accumulate: bool = False, **macros: int,
    ) -> None:  # fmt: skip
        e.launch(
            "frozen.cl", kernel, grid, x.read, w.read, y.update if accumulate else y.write, x.rows, count, k,
            self.units, w.shape[-1], flops=2 * x.rows * k * self.units, accumulate=accumulate, **_format(self.format),
            **macros,
        )  # fmt: skip


@dataclass(frozen=True)
class FrozenEmbedding(Op):
    """A frozen row in a block format for each number of the input, (count,) -> (count, output_dim): an Embedding that
    isn't trained. Numbers are read as Embedding's.

    Arguments:
    - `input_dim`: number of rows, one more than the largest number.
    - `output_dim`: channels of a row, a multiple of 32.
    - `format`: as FrozenDense's (default "Q8_0").

    Weights: rows, uint8 (input_dim, bytes of a row). Raises ShapeError for other settings or shapes.
    """

    takes_numbers = (0,)

    input_dim: int
    output_dim: int
    format: str = "Q8_0"

    def output_shape(self, shape: Shape) -> Shape:
        if not (is_count(self.input_dim) and is_count(self.output_dim)) or len(shape) != 1:
            raise ShapeError(
                f"FrozenEmbedding has 1 row and 1 channel or more and takes numbers (count,), not {self.input_dim}, "
                f"{self.output_dim} and {shape}."
            )
        bytes_shape((self.input_dim, self.output_dim), self.format)
        return (*shape, self.output_dim)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"rows": Weight((self.input_dim, self.output_dim), trainable=False, format=self.format)}

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        places = places_of(inputs[0], self.input_dim)
        rows = decode(weights["rows"], self.format)[places].astype(inputs[0].dtype)
        rows[places < 0] = np.nan
        return rows

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [np.zeros_like(inputs[0])], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        numbers, w = inputs
        groups, count = e.bands(y.rows, y.blocks)
        e.launch(
            "frozen.cl", "frozen_rows", (groups, y.blocks), numbers.read, w.read, y.write, numbers.images,
            numbers.channels, y.rows, count, y.channels, self.input_dim, w.shape[-1], **_format(self.format),
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        if targets[0] is not None:
            emit_zeros(e, dy, targets[0])


def _format(name: str) -> dict[str, Any]:
    return {"format": name, "block_bytes": BLOCK_BYTES[name]}
