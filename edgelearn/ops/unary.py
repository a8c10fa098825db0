"""Arithmetic on each value: powers, logarithm, absolute value, and a scale and an offset that are constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.launch import In

from .activation import Activation
from .function import Function
from .tensor import Tensor


@dataclass(frozen=True)
class Rescaling(Activation):
    """scale * x + offset, with constants, as in Keras. For trained ones, or one for each channel, there are Scale and
    Bias.

    Arguments:
    - `scale`: factor.
    - `offset`: added to the product (default 0).
    """

    scale: float = 1.0
    offset: float = 0.0

    @property
    def function(self) -> Function:
        return Function("affine", (self.scale, self.offset))

    @property
    def keeps_zero(self) -> bool:  # type: ignore[override]
        return self.offset == 0

    @property
    def _fuses(self) -> bool:
        return False

    def value(self, x: np.ndarray) -> np.ndarray:
        return self.scale * x + self.offset

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return np.full_like(x, self.scale)

    def _derived_from(self, x: Tensor, y: Tensor, dy: Tensor) -> In:
        return dy.read  # any tensor: the derivative is constant


@dataclass(frozen=True)
class Abs(Activation):
    """The absolute value. The derivative at 0 is 0."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("abs")

    def value(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return np.sign(x)


@dataclass(frozen=True)
class Square(Activation):
    """x * x."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("square")

    def value(self, x: np.ndarray) -> np.ndarray:
        return x * x

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return 2 * x


@dataclass(frozen=True)
class Log(Activation):
    """The natural logarithm."""

    needs_input = True
    keeps_zero = False

    @property
    def function(self) -> Function:
        return Function("log")

    def value(self, x: np.ndarray) -> np.ndarray:
        return np.log(x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return 1 / x


@dataclass(frozen=True)
class Exp(Activation):
    """The exponential function."""

    keeps_zero = False

    @property
    def function(self) -> Function:
        return Function("exp")

    def value(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)


@dataclass(frozen=True)
class Sqrt(Activation):
    """The square root."""

    keeps_zero = False

    @property
    def function(self) -> Function:
        return Function("sqrt")

    def value(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return 0.5 / np.sqrt(x)


@dataclass(frozen=True)
class Rsqrt(Activation):
    """1 / the square root."""

    keeps_zero = False

    @property
    def function(self) -> Function:
        return Function("rsqrt")

    def value(self, x: np.ndarray) -> np.ndarray:
        return x**-0.5

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return -0.5 * x**-1.5


@dataclass(frozen=True)
class Reciprocal(Activation):
    """1 / x."""

    keeps_zero = False

    @property
    def function(self) -> Function:
        return Function("reciprocal")

    def value(self, x: np.ndarray) -> np.ndarray:
        return 1 / x

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return -(x**-2.0)
