"""Activations and arithmetic in inference graphs, by the table that PyTorch and Keras share (see pointwise.py).

Its functions compute with anything that has operators: here with values of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from edgelearn.interop.pointwise import ACTIVATIONS, ARITHMETIC
from edgelearn.ops import ELU, GELU, SELU, BroadcastTo, Greater, HardSwish, LeakyReLU, Less, Op, PReLU, Where

from .graph import InferenceGraph, Value


@dataclass(frozen=True, eq=False)
class Expression:
    """A value that Python's operators compute with."""

    graph: InferenceGraph
    value: Value

    def _with(self, kind: str, other: Expression | float, swapped: bool = False) -> Expression:
        g = self.graph
        number = other.value if isinstance(other, Expression) else g.constant(np.float32(other), "number")
        pair = (number, self.value) if swapped else (self.value, number)
        return Expression(g, g.binary(kind, *pair))

    def unary(self, kind: str) -> Expression:
        return Expression(self.graph, self.graph.unary(kind, self.value))

    def __add__(self, other: Any) -> Expression:
        return self._with("add", other)

    def __radd__(self, other: float) -> Expression:
        return self._with("add", other, True)

    def __sub__(self, other: Any) -> Expression:
        return self._with("sub", other)

    def __rsub__(self, other: float) -> Expression:
        return self._with("sub", other, True)

    def __mul__(self, other: Any) -> Expression:
        return self._with("mul", other)

    def __rmul__(self, other: float) -> Expression:
        return self._with("mul", other, True)

    def __truediv__(self, other: Any) -> Expression:
        return self._with("div", other)

    def __rtruediv__(self, other: float) -> Expression:
        return self._with("div", other, True)

    def __pow__(self, power: int) -> Expression:
        return self if power == 1 else self * self ** (power - 1)

    def __neg__(self) -> Expression:
        return self.unary("neg")


class Functions:
    """The functions that the table calls, as `torch` and `keras.ops` have them."""

    def __getattr__(self, name: str) -> Callable[[Expression], Expression]:
        return lambda x: x.unary(name)

    def clip(self, x: Expression, low: float, high: float) -> Expression:
        if (low, high) in ((0, inf), (0, 6)):
            return x.unary("relu6" if high == 6 else "relu")
        x = x if low == -inf else x._with("maximum", low)
        return x if high == inf else x._with("minimum", high)

    def maximum(self, a: Expression, b: Expression) -> Expression:
        return a._with("maximum", b)

    def minimum(self, a: Expression, b: Expression) -> Expression:
        return a._with("minimum", b)

    def square(self, x: Expression) -> Expression:
        return x * x

    def expm1(self, x: Expression) -> Expression:
        return x.unary("exp") - 1.0

    def log1p(self, x: Expression) -> Expression:
        return (x + 1.0).unary("log")


def _handler(function: Callable[..., Any]) -> Callable[..., Value]:
    def handle(graph: InferenceGraph, layer: Any, *inputs: Value) -> Value:
        """Operands of lower rank get sizes of 1 behind the batch's axis."""
        rank = 1 + len(layer.node.shape)
        weights = [graph.constant(a.astype(np.float32), role) for role, a in layer.weights.items()]
        aligned = [graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape[1:]) for x in inputs]
        operands = [Expression(graph, x) for x in (*aligned, *weights)]
        return function(Functions(), layer.node.op, *operands).value

    return handle


def _aligned(kind: str) -> Callable[..., Value]:
    """The formats' own operator, whose operands have as many axes as the result."""

    def handle(graph: InferenceGraph, layer: Any, *inputs: Value) -> Value:
        rank = 1 + len(layer.node.shape)
        aligned = [graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape[1:]) for x in inputs]
        return graph.add(kind, aligned, (1, *layer.node.shape))

    return handle


def _gelu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    if layer.node.op.approximate:
        return _handler(ACTIVATIONS[GELU])(graph, layer, x)
    return graph.unary("gelu", x)


def _leaky(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    return graph.unary("leaky_relu", x, alpha=layer.node.op.negative_slope)


def _prelu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    alpha = graph.constant(layer.weights["alpha"].astype(np.float32), "alpha")
    return graph.add("prelu", [x, alpha], x.shape)


def _elu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    """The formats' own operator, whose alpha is 1; below 0 it is multiplied, as SELU is."""
    op, y = layer.node.op, graph.unary("elu", x)
    if op.alpha != 1:
        y = graph.binary("add", graph.unary("relu", x), graph.scalar("mul", graph.scalar("minimum", y, 0), op.alpha))
    return y if op.scale == 1 else graph.scalar("mul", y, op.scale)


POINTWISE: dict[type[Op], Callable[..., Value]] = {
    op: _handler(function) for op, function in (ACTIVATIONS | ARITHMETIC).items()
} | {
    ELU: _elu, GELU: _gelu, HardSwish: lambda graph, layer, x: graph.unary("hard_swish", x), LeakyReLU: _leaky,
    PReLU: _prelu, SELU: _elu, BroadcastTo: _aligned("broadcast_to"), Greater: _aligned("greater"),
    Less: _aligned("less"), Where: _aligned("where"),
}  # fmt: skip
