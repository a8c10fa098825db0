"""Add and Concatenate: several tensors into one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, PlainOp
from .copy import emit_copy
from .emit import Emitter, GradientTarget
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Add(PlainOp):
    """The sum of two or more tensors of the same shape."""

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2 or len(set(shapes)) > 1:
            raise ShapeError(f"Add takes two or more inputs of the same shape, not {', '.join(map(str, shapes))}.")
        return shapes[0]

    def flops(self, *shapes: Shape) -> int:
        return (len(shapes) - 1) * prod(shapes[0])

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return sum(inputs)

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray
    ) -> tuple[list[np.ndarray], Arrays]:
        return [dy for _ in inputs], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        a, b, *more = inputs
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "merge.cl", "add", (groups, y.blocks), a.read, b.read, y.write, y.rows, count,
        )  # fmt: skip
        for x in more:
            emit_copy(e, x, GradientTarget(y, accumulate=True))

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        for target in targets:
            if target is not None:
                emit_copy(e, dy, target)


@dataclass(frozen=True)
class Concatenate(PlainOp):
    """The channels of two or more tensors side by side; their other sizes agree."""

    selects = True

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2 or len({shape[:-1] for shape in shapes}) > 1:
            raise ShapeError(
                f"Concatenate takes two or more inputs that differ only in channels, not {', '.join(map(str, shapes))}."
            )
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.concatenate(inputs, -1)

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray
    ) -> tuple[list[np.ndarray], Arrays]:
        return np.split(dy, _offsets(inputs)[1:], -1), {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        """The first input fills all of y, with zeros in the places of the others."""
        for x, offset in zip(inputs, _offsets(inputs), strict=True):
            blocks = y.blocks if offset == 0 else -(-(offset + x.channels) // y.block) - offset // y.block
            groups, count = e.bands(x.rows, blocks, 64)
            e.launch(
                "merge.cl", "concatenate_forward", (groups, blocks), x.read, y.update if offset else y.write, x.rows,
                count, x.channels, offset, whole=True,
            )  # fmt: skip

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        for x, offset, target in zip(inputs, _offsets(inputs), targets, strict=True):
            if target is None:
                continue
            groups, count = e.bands(x.rows, x.blocks, 64)
            e.launch(
                "merge.cl", "concatenate_backward", (groups, x.blocks), dy.read, x.rows, count, x.channels, offset,
                *target.arguments, whole=True, **target.macros,
            )  # fmt: skip


def _offsets(inputs: list[Tensor] | list[np.ndarray]) -> list[int]:
    """The channel where each input begins."""
    return list(accumulate((x.shape[-1] for x in inputs[:-1]), initial=0))
