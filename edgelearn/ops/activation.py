"""Activations: ReLU and ReLU6, SiLU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import RELU, RELU6, SILU, Emitter
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Activation(Op):
    """Base of functions applied to each value."""

    @property
    def code(self) -> int:
        """The OWN of kernels/elementwise.cl."""
        raise NotImplementedError

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        groups, count = e.bands(x.rows, x.blocks, 64)
        e.launch(
            "elementwise.cl", "activation_forward", (groups, x.blocks), x.read, y.write, x.rows, count,
            own=self.code, activation=0,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target = only(targets)
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "elementwise.cl", "activation_backward", (groups, y.blocks), self._derived_from(inputs[0], y), dy.read,
            y.rows, count, *target.arguments, own=self.code, **target.macros,
        )  # fmt: skip

    def _derived_from(self, x: Tensor, y: Tensor) -> In:
        """The tensor that the derivative is computed from: for rectifiers a mask of the output, else the input."""
        return y.read_mask


@dataclass(frozen=True)
class ReLU(Activation):
    """max(x, 0); with max_value=6, min(max(x, 0), 6) (ReLU6). The derivative at the corners is 0, as in TensorFlow.

    Arguments:
    - `max_value`: None or 6.

    Raises ShapeError for another max_value.
    """

    max_value: float | None = None

    def __post_init__(self) -> None:
        if self.max_value not in (None, 6):
            raise ShapeError(f"ReLU has max_value None or 6, not {self.max_value}.")

    @property
    def code(self) -> int:
        return RELU if self.max_value is None else RELU6

    @property
    def activation_code(self) -> int:
        return self.code

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.clip(inputs[0], 0, self.max_value)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        passes = (x > 0) if self.max_value is None else (x > 0) & (x < self.max_value)
        return [dy * passes], {}


@dataclass(frozen=True)
class SiLU(Activation):
    """x * sigmoid(x), also known as swish (Elfwing et al. 2018; Ramachandran et al. 2017).

    The derivative can't be computed from the output, since the function isn't monotonic: SiLU is not fused, and its
    input is stored for the backward pass.
    """

    @property
    def code(self) -> int:
        return SILU

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0] * _sigmoid(inputs[0])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        s = _sigmoid(x)
        return [dy * s * (1 + x * (1 - s))], {}

    def _derived_from(self, x: Tensor, y: Tensor) -> In:
        return x.read


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2
