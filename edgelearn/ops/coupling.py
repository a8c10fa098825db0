"""Additive couplings (Dinh et al. 2014, "NICE", arXiv 1410.8516), and the streams that they add to.

A sum of floats is rounded, so its inverse is only approximate. Multiples of a power of two, `step`, add up exactly as
long as they stay below 2^24 steps: then the inverse restores the bits (the idea of Hoogeboom et al. 2019, "Integer
discrete flows", arXiv 1905.07376). Gradients ignore the rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .copy import emit_copy
from .emit import Emitter
from .merge import Add
from .tensor import Shape, Tensor

STEP = 2.0**-16  # exact up to 256


@dataclass(frozen=True)
class Stream(Op):
    """Rounds the input to multiples of `step`, a power of two: the start of a stream."""

    step: float = STEP

    def __post_init__(self) -> None:
        _check(self.step)

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.round(inputs[0] / self.step) * self.step

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "coupling.cl", "begin", (groups, y.blocks), inputs[0].read, y.write, y.rows, count, float(self.step),
            1 / self.step,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        emit_copy(e, dy, only(targets))


@dataclass(frozen=True)
class Coupling(Add):
    """y = x + f, with f rounded to multiples of `step` unless that is 0; x must be multiples of `step` already.

    x need not be stored, since y - f restores it, provided that f is computed from another stream.
    """

    step: float = STEP

    invertible = True

    def __post_init__(self) -> None:
        if self.step:
            _check(self.step)

    @property
    def inverts_exactly(self) -> bool:
        return bool(self.step)

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) != 2:
            raise ShapeError(f"Coupling takes a stream and what is added to it, not {len(shapes)} inputs.")
        if shapes[0] != shapes[1]:
            raise ShapeError(f"Coupling adds a tensor of the same shape to a stream of {shapes[0]}, not {shapes[1]}.")
        return shapes[0]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        x, f = inputs
        return x + (np.round(f / self.step) * self.step if self.step else f)

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit(e, "couple", inputs[0], inputs[1], y)

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        self._emit(e, "uncouple", y, others[0], x)

    def _emit(self, e: Emitter, kernel: str, a: Tensor, f: Tensor, result: Tensor) -> None:
        groups, count = e.bands(a.rows, a.blocks, 64)
        steps = (float(self.step), 1 / self.step) if self.step else ()
        e.launch(
            "coupling.cl", kernel, (groups, a.blocks), a.read, f.read, result.write, a.rows, count, *steps,
            exact=bool(self.step),
        )  # fmt: skip


def _check(step: float) -> None:
    """Raises ShapeError."""
    if step <= 0 or frexp(step)[0] != 0.5:
        raise ShapeError(f"The step of a stream is a power of two, such as 2**-16, not {step}.")
