"""Activations that multiply x by a gate: not monotonic, so the derivative can't be computed from the output. They
aren't fused, and their input is stored for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np

from .activation import Activation, sigmoid
from .function import Function


@dataclass(frozen=True)
class SiLU(Activation):
    """x * sigmoid(x), also known as swish (Elfwing et al. 2018; Ramachandran et al. 2017)."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("silu")

    def value(self, x: np.ndarray) -> np.ndarray:
        return x * sigmoid(x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        s = sigmoid(x)
        return s * (1 + x * (1 - s))


@dataclass(frozen=True)
class HardSwish(Activation):
    """x * min(max(x / 6 + 0.5, 0), 1), also known as hard SiLU (Howard et al. 2019, "Searching for MobileNetV3")."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("hard_swish", (1 / 6, 0.5))

    def value(self, x: np.ndarray) -> np.ndarray:
        return x * np.clip(x / 6 + 0.5, 0, 1)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5))


@dataclass(frozen=True)
class GELU(Activation):
    """x times the share of a standard normal distribution below x (Hendrycks and Gimpel 2016).

    Arguments:
    - `approximate`: compute it by tanh, as the first publications did (default False, as in Keras and PyTorch).
    """

    approximate: bool = False

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("gelu_tanh" if self.approximate else "gelu")

    def value(self, x: np.ndarray) -> np.ndarray:
        return x * (sigmoid(_bent(x)) if self.approximate else _normal_integral(x))

    def derivative(self, x: np.ndarray) -> np.ndarray:
        if self.approximate:
            s = sigmoid(_bent(x))
            return s + x * s * (1 - s) * 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2)
        return _normal_integral(x) + x * np.exp(-(x**2) / 2) / sqrt(2 * pi)


@dataclass(frozen=True)
class Mish(Activation):
    """x * tanh(softplus(x)) (Misra 2019)."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("mish")

    def value(self, x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.logaddexp(0, x))

    def derivative(self, x: np.ndarray) -> np.ndarray:
        t = np.tanh(np.logaddexp(0, x))
        return t + x * (1 - t**2) * sigmoid(x)


def _normal_integral(x: np.ndarray) -> np.ndarray:
    """The standard normal distribution's integral up to each of `x`."""
    values = [0.5 * (1 + erf(v / sqrt(2))) for v in np.ravel(x)]
    return np.reshape(np.array(values, x.dtype), x.shape)


def _bent(x: np.ndarray) -> np.ndarray:
    """The argument of the sigmoid that approximates the integral."""
    return 2 * sqrt(2 / pi) * (x + 0.044715 * x**3)
