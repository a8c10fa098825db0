"""Formulas: functions of values as one expression of a namespace `xp`, for all who compute them.

A formula is `formula(xp, *values)`. `xp` is `NUMPY` for the float64 references, `torch` or `keras.ops` in converted
networks, or an exporter's namespace whose functions add operators to a graph. It calls only functions that all of these
have by one name: abs, clip, erf, exp, expm1, log, log1p, maximum, minimum, ones_like, rsqrt, sigmoid, sqrt, square,
tanh, where and zeros_like. `differentiate` gives its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np


class _NumPy:
    """NumPy, and functions that it has by other names or not at all."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def erf(x: Any) -> Any:
        from scipy.special import erf

        return erf(x)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return x**-0.5

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)) without overflow."""
        return (1 + np.tanh(x / 2)) / 2


NUMPY = _NumPy()
SLOPES: dict[str, Callable[[Any, Any], Any]] = {  # derivative at x, where the value is y
    "abs": lambda x, y: np.sign(x),
    "erf": lambda x, y: 2 / sqrt(pi) * np.exp(-x * x),
    "exp": lambda x, y: y,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log1p": lambda x, y: 1 / (1 + x),
    "ones_like": lambda x, y: 0.0,
    "rsqrt": lambda x, y: -0.5 * y**3,
    "sigmoid": lambda x, y: y * NUMPY.sigmoid(-x),
    "sqrt": lambda x, y: 0.5 / y,
    "square": lambda x, y: 2 * x,
    "tanh": lambda x, y: 1 - y * y,
    "zeros_like": lambda x, y: 0.0,
}


def _compared(name: str) -> Any:
    return lambda self, other: getattr(self.value, name)(_dual(other).value)


@dataclass(frozen=True, eq=False)
class _Dual:
    """A value with its derivative by one variable."""

    __array_ufunc__ = None  # arrays leave operators to this class
    value: Any
    slope: Any = 0.0

    __gt__, __lt__, __ge__, __le__, __ne__ = map(_compared, ("__gt__", "__lt__", "__ge__", "__le__", "__ne__"))

    def __neg__(self) -> _Dual:
        return _Dual(-self.value, -self.slope)

    def __add__(self, other: Any) -> _Dual:
        b = _dual(other)
        return _Dual(self.value + b.value, self.slope + b.slope)

    def __sub__(self, other: Any) -> _Dual:
        return self + -_dual(other)

    def __rsub__(self, other: Any) -> _Dual:
        return _dual(other) + -self

    def __mul__(self, other: Any) -> _Dual:
        b = _dual(other)
        return _Dual(self.value * b.value, self.slope * b.value + self.value * b.slope)

    def __truediv__(self, other: Any) -> _Dual:
        b = _dual(other)
        y = self.value / b.value
        return _Dual(y, (self.slope - y * b.slope) / b.value)

    def __rtruediv__(self, other: Any) -> _Dual:
        return _dual(other) / self

    def __pow__(self, power: float) -> _Dual:
        """The slope of a root at 0, which isn't finite, counts as 0."""
        y, base = self.value**power, self.value
        if 0 < power < 1:
            base = np.where(base == 0, np.inf, base)
        return _Dual(y, power * base ** (power - 1) * self.slope if power else 0.0)

    __radd__, __rmul__ = __add__, __mul__


def _dual(value: Any) -> _Dual:
    return value if isinstance(value, _Dual) else _Dual(value)


class _Duals:
    """The functions of a formula on values with derivatives. At corners `clip` has derivative 0, as in TensorFlow, and
    of equal values `maximum` and `minimum` take the first."""

    def __getattr__(self, name: str) -> Callable[[Any], _Dual]:
        def function(x: Any) -> _Dual:
            x = _dual(x)
            y = getattr(NUMPY, name)(x.value)
            return _Dual(y, SLOPES[name](x.value, y) * x.slope)

        return function

    def where(self, condition: Any, a: Any, b: Any) -> _Dual:
        a, b = _dual(a), _dual(b)
        return _Dual(np.where(condition, a.value, b.value), np.where(condition, a.slope, b.slope))

    def maximum(self, a: Any, b: Any) -> _Dual:
        return self.where(_dual(a) >= b, a, b)

    def minimum(self, a: Any, b: Any) -> _Dual:
        return self.where(_dual(a) <= b, a, b)

    def clip(self, x: Any, low: float, high: float) -> _Dual:
        x = _dual(x)
        return _Dual(np.clip(x.value, low, high), ((x.value > low) & (x.value < high)) * x.slope)


DUALS = _Duals()


def differentiate(formula: Callable[..., Any], *values: Any) -> list[Any]:
    """Return the derivatives of `formula` by each of `values`: arrays, or numbers where they are constant."""
    places = range(len(values))
    return [
        _dual(formula(DUALS, *(_Dual(v, 1.0) if place == at else v for at, v in enumerate(values)))).slope
        for place in places
    ]
