"""Dropout whose mask is not stored: it is drawn again, from a counter, wherever it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .copy import emit_copy
from .emit import Emitter
from .philox import layer_code, uniform
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Dropout(Op):
    """In training each value becomes 0 with probability `rate`, and is divided by 1 - rate otherwise (Srivastava et al.
    2014); else values pass unchanged.

    The mask is a function of the plan's seed, the step, the layer's name, the example's place in its mini-batch and the
    value's place in the example: it depends neither on micro-batches nor on the device. Raises ShapeError for a rate
    outside [0, 1).
    """

    rate: float = 0.5

    random = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ShapeError(f"The rate of Dropout is at least 0 and below 1, not {self.rate}.")

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        """Shape of the random numbers for an example of `shape`."""
        return shape

    def factors(self, layer: str, shape: Shape, examples: int, seed: int, step: int, first: int = 0) -> np.ndarray:
        """The factors of examples `first`, `first` + 1, ... of a mini-batch in training: (examples, *shape), where axes
        of equal factors have size 1."""
        drawn = uniform(layer, (examples, *self._drawn(shape)), seed, step, first)
        return (drawn >= np.float32(self.rate)) / (1 - self.rate)

    def reference_forward(
        self, inputs: list[np.ndarray], weights: Arrays, factors: np.ndarray | float = 1.0
    ) -> np.ndarray:
        return inputs[0] * factors

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray, factors: np.ndarray | float = 1.0
    ) -> Gradients:
        return [dy * factors], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        if e.training is None:
            emit_copy(e, x, Target(y))
        else:
            self._emit(e, x, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        self._emit(e, dy, only(targets))

    def _emit(self, e: Emitter, x: Tensor, target: Target) -> None:
        groups, count = e.bands(x.rows, x.blocks)
        drawn, control = prod(self._drawn(x.shape[1:])[:-1]), e.training
        assert control is not None
        e.launch(
            "dropout.cl", "dropout", (groups, x.blocks), x.read, control.scalars.read, control.counters.read,
            x.rows, count, x.images, drawn, layer_code(e.layer), float(self.rate), 1 / (1 - self.rate),
            *target.arguments, whole=True, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class SpatialDropout2D(Dropout):
    """Dropout of whole channels of (height, width, channels): neighbouring pixels are alike (Tompson et al. 2015)."""

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"SpatialDropout2D takes (height, width, channels), not {shape}.")
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        return (1, 1, shape[-1])
