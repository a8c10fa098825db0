"""Activations and arithmetic in PyTorch and Keras: one table for both, made of functions that have the same name there.

Each entry is a function of a namespace (`torch` or `keras.ops`), the op, and its operands: tensors with the network's
order of axes, in the sizes of the result or repeated to it; a weight comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi, sqrt
from typing import Any

from edgelearn.ops import (
    ELU,
    GELU,
    SELU,
    Abs,
    Bias,
    BroadcastTo,
    Clip,
    Divide,
    Exp,
    Greater,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    Less,
    Log,
    Maximum,
    Minimum,
    Mish,
    Multiply,
    Op,
    PReLU,
    Reciprocal,
    Rescaling,
    Rsqrt,
    Scale,
    Sigmoid,
    SiLU,
    Softplus,
    Softsign,
    Sqrt,
    Square,
    Subtract,
    Tanh,
    Where,
)


def _clip(m: Any, op: Clip, x: Any) -> Any:
    return m.clip(x, -inf if op.min_value is None else op.min_value, inf if op.max_value is None else op.max_value)


def _leaky(m: Any, slope: Any, x: Any) -> Any:
    return m.where(x > 0, x, x * slope)


def _elu(m: Any, op: ELU, x: Any) -> Any:
    return op.scale * m.where(x > 0, x, op.alpha * m.expm1(m.clip(x, -inf, 0.0)))


def _softplus(m: Any, x: Any) -> Any:
    return m.clip(x, 0.0, inf) + m.log1p(m.exp(-m.abs(x)))


def _hard_sigmoid(m: Any, alpha: float, beta: float, x: Any) -> Any:
    return m.clip(alpha * x + beta, 0.0, 1.0)


def _gelu(m: Any, op: GELU, x: Any) -> Any:
    if op.approximate:
        return 0.5 * x * (1 + m.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + m.erf(x * sqrt(0.5)))


ACTIVATIONS: dict[type[Op], Callable[..., Any]] = {
    Abs: lambda m, op, x: m.abs(x),
    Clip: _clip,
    ELU: _elu,
    Exp: lambda m, op, x: m.exp(x),
    GELU: _gelu,
    HardSigmoid: lambda m, op, x: _hard_sigmoid(m, op.alpha, op.beta, x),
    HardSwish: lambda m, op, x: x * _hard_sigmoid(m, 1 / 6, 0.5, x),
    LeakyReLU: lambda m, op, x: _leaky(m, op.negative_slope, x),
    Log: lambda m, op, x: m.log(x),
    Mish: lambda m, op, x: x * m.tanh(_softplus(m, x)),
    Reciprocal: lambda m, op, x: 1 / x,
    Rescaling: lambda m, op, x: op.scale * x + op.offset,
    Rsqrt: lambda m, op, x: m.rsqrt(x),
    SELU: _elu,
    Sigmoid: lambda m, op, x: m.sigmoid(x),
    SiLU: lambda m, op, x: x * m.sigmoid(x),
    Softplus: lambda m, op, x: _softplus(m, x),
    Softsign: lambda m, op, x: x / (1 + m.abs(x)),
    Sqrt: lambda m, op, x: m.sqrt(x),
    Square: lambda m, op, x: m.square(x),
    Tanh: lambda m, op, x: m.tanh(x),
}


def _truth(m: Any, condition: Any, like: Any) -> Any:
    return m.where(condition, m.ones_like(like), m.zeros_like(like))


ARITHMETIC: dict[type[Op], Callable[..., Any]] = {
    Bias: lambda m, op, x, bias: x + bias,
    BroadcastTo: lambda m, op, x: x * m.ones(op.shape),
    Divide: lambda m, op, a, b: a / b,
    Greater: lambda m, op, a, b: _truth(m, a > b, a + b),
    Less: lambda m, op, a, b: _truth(m, a < b, a + b),
    Maximum: lambda m, op, a, b: m.maximum(a, b),
    Minimum: lambda m, op, a, b: m.minimum(a, b),
    Multiply: lambda m, op, a, b: a * b,
    PReLU: lambda m, op, x, alpha: _leaky(m, alpha, x),
    Scale: lambda m, op, x, scale: x * scale,
    Subtract: lambda m, op, a, b: a - b,
    Where: lambda m, op, condition, a, b: m.where(condition != 0, a, b),
}
