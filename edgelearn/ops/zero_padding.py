"""ZeroPadding2D."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor
from .window import Pair, pair


@dataclass(frozen=True)
class ZeroPadding2D(Op):
    """Pads (height, width, channels) with zeros, as in Keras.

    Arguments:
    - `padding`: an int for all sides, (vertical, horizontal), or ((top, bottom), (left, right)) (default 1).

    Raises ShapeError for negative padding.
    """

    selects = True
    has_values = True

    padding: int | Pair | tuple[Pair, Pair] = 1

    @property
    def sides(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right))"""
        vertical, horizontal = (self.padding,) * 2 if isinstance(self.padding, int) else self.padding
        return pair(vertical), pair(horizontal)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"ZeroPadding2D takes (height, width, channels), not {shape}.")
        if min(map(min, self.sides)) < 0:
            raise ShapeError(f"Padding is 0 or more on every side, not {self.padding}.")
        vertical, horizontal = self.sides
        return (shape[0] + sum(vertical), shape[1] + sum(horizontal), shape[2])

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.pad(inputs[0], ((0, 0), *self.sides, (0, 0)))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        _, height, width, _ = inputs[0].shape
        (top, _), (left, _) = self.sides
        return [dy[:, top : top + height, left : left + width]], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (top, _), (left, _) = self.sides
        _emit_moved(e, inputs[0], -top, -left, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (top, _), (left, _) = self.sides
        _emit_moved(e, dy, top, left, only(targets))


def _emit_moved(e: Emitter, x: Tensor, down: int, right: int, target: Target) -> None:
    """Emit target at (y, x) = x at (y + down, x + right), or 0 outside x."""
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks, 64)
    e.launch(
        "zero_padding.cl", "move_image", (groups, y.blocks), x.read, y.rows, count, x.height, x.width, y.height,
        y.width, down, right, *target.arguments, **target.macros,
    )  # fmt: skip
