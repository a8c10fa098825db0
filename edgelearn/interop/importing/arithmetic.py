"""Activations and sums, products of values and constants for handlers.

Exporters spell functions out: hard-swish as x * min(max(x + 3, 0), 6) / 6, SiLU as x * sigmoid(x), BatchNormalization
as a product and a sum. They become one layer again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isclose, prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Add, DepthwiseConv2D, Op, ReLU, Rescaling, SiLU, Softmax

from . import linear
from .builder import Builder, Layer, check_size
from .value import Value

Operand = Value | np.ndarray


def activation(b: Builder, x: Operand, op: Op | str, **config) -> Any:
    """A function of each value: an op, or the class name and the settings of one."""
    op = b.op(op, **config) if isinstance(op, str) else op
    if isinstance(x, np.ndarray):
        return op.reference_forward([x], {})
    return b.apply(op, x)


def clip(b: Builder, x: Operand, low: float | None, high: float | None) -> Any:
    """min(max(x, low), high); None or infinity is no limit."""
    if isinstance(x, np.ndarray):
        return np.clip(x, low, high)
    low, high = (None if limit is None or np.isinf(limit) else float(limit) for limit in (low, high))
    if low is None and high is None:
        return x
    if low == 0 and high in (None, 6):
        return activation(b, x, ReLU(high and 6))
    return activation(b, x, "Clip", min_value=low, max_value=high)


def hard_sigmoid(b: Builder, x: Operand, slope: float = 1 / 6, shift: float = 0.5) -> Any:
    """min(max(slope * x + shift, 0), 1)"""
    slope = 1 / 6 if isclose(slope, 1 / 6, rel_tol=1e-6) else slope
    return activation(b, x, "HardSigmoid", alpha=slope, beta=shift)


def add(b: Builder, x: Operand, y: Operand) -> Operand:
    """x + y; a constant is a number, or one number for each channel."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.add, x, y)
    if isinstance(x, Value) and isinstance(y, Value):
        return _both(b, Add(), x, y)
    return _with_constant(b, *_value_and_constant(x, y), is_shift=True)


def subtract(b: Builder, x: Operand, y: Operand) -> Operand:
    """x - y"""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.subtract, x, y)
    if isinstance(y, np.ndarray):
        return add(b, x, -y)
    if isinstance(x, np.ndarray):
        return add(b, scale(b, y, -1.0), x)
    return _both(b, b.op("Subtract"), x, y) if "Subtract" in Op.registry else add(b, x, scale(b, y, -1.0))


def multiply(b: Builder, x: Operand, y: Operand) -> Operand:
    """x * y; a gate that is a function of the other factor makes one layer of both: SiLU, hard-swish."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.multiply, x, y)
    if isinstance(x, Value) and isinstance(y, Value):
        return _gated(b, x, y) or _gated(b, y, x) or _both(b, b.op("Multiply"), x, y)
    return _with_constant(b, *_value_and_constant(x, y), is_shift=False)


def divide(b: Builder, x: Operand, y: Operand) -> Operand:
    """x / y, where y is a constant."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            both = np.issubdtype(x.dtype, np.integer) and np.issubdtype(y.dtype, np.integer)
            return _constant(np.floor_divide if both else np.true_divide, x, y)
    if isinstance(y, Value):
        raise UnsupportedError("Division by a value.", "Division by a constant.")
    if not np.all(y):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}' divides by 0: the file is damaged.")
    return multiply(b, x, np.asarray(1 / y.astype(np.float64)))


def scale(b: Builder, x: Operand, factor: float, shift: float = 0.0) -> Any:
    """x * factor + shift with two numbers."""
    if isinstance(x, np.ndarray):
        return x * x.dtype.type(factor) + x.dtype.type(shift)
    before = b.maker(x)
    if before and isinstance(before.op, Rescaling):  # two in a row are one
        x = replace(x, layer=before.inputs[0])
        factor, shift = factor * before.op.scale, factor * before.op.offset + shift
        before = b.maker(x)
    if isclose(factor, 1, rel_tol=1e-6) and abs(shift) < 1e-7:
        return x
    gate = _shifted_relu6(b, before)
    if gate and isclose(factor, 1 / 6, rel_tol=1e-6) and shift == 0:
        return activation(b, replace(x, layer=gate), "HardSigmoid")
    return b.apply(Rescaling(factor, shift), x)


def _constant(function: Callable, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    try:
        check_size(np.broadcast_shapes(x.shape, y.shape))
    except ValueError:
        raise FormatError(f"Constants of shapes {x.shape} and {y.shape} don't fit: the file is damaged.") from None
    return np.asarray(function(x, y))


def _gated(b: Builder, x: Value, gate: Value) -> Value | None:
    """x * gate as one layer, if the gate is a function of x that has one. None if not."""
    layer = b.maker(gate)
    if layer is None or gate.sizes != x.sizes or gate.axes != x.axes:
        return None
    kind = type(layer.op).__name__
    if kind == "Sigmoid" and b.source(layer.inputs[0]) == b.source(x.layer):
        return activation(b, x, SiLU())
    if kind == "HardSigmoid" and layer.op == b.op(kind) and b.source(layer.inputs[0]) == b.source(x.layer):
        return activation(b, x, "HardSwish")
    if _shifted_relu6(b, layer) == b.source(x.layer):
        return scale(b, activation(b, x, "HardSwish"), 6.0)
    return None


def _shifted_relu6(b: Builder, layer: Layer | None) -> str | None:
    """The layer x if `layer` is relu6(x + 3), else None."""
    if layer is None or not isinstance(layer.op, ReLU) or layer.op.max_value != 6:
        return None
    before = b.layers.get(b.source(layer.inputs[0]))
    return b.source(before.inputs[0]) if before and before.op == Rescaling(1.0, 3.0) else None


def _both(b: Builder, op: Op, x: Value, y: Value) -> Value:
    """A layer that reads both values, where sizes of 1 are repeated."""
    if x.sizes == y.sizes and x.axes == y.axes and b.shape(x.layer) == b.shape(y.layer):
        return replace(x, layer=b.add(op, x.layer, y.layer), sole=True)
    while x.rank < y.rank:
        x = x.expanded(0)
    while y.rank < x.rank:
        y = y.expanded(0)
    larger = x if prod(x.shape) >= prod(y.shape) else y
    order = b.natural_order(larger)
    if len(order) < 3 and x.shape != y.shape:  # ops repeat heights and widths
        order = (*[None] * (3 - len(order)), *order)  # type: ignore[assignment]
    return b.view(larger, b.add(op, b.laid_out(x, order), b.laid_out(y, order)), order)


def _value_and_constant(x: Operand, y: Operand) -> tuple[Value, np.ndarray]:
    if isinstance(x, np.ndarray):
        x, y = y, x
    assert isinstance(x, Value)
    assert isinstance(y, np.ndarray)
    return x, y


def _with_constant(b: Builder, x: Value, constant: np.ndarray, is_shift: bool) -> Value:
    """x plus or times a constant of the file."""
    while constant.ndim > x.rank:
        x = x.expanded(0)
    if constant.size == 1:
        number = float(constant.reshape(()))
        return scale(b, x, 1.0, number) if is_shift else scale(b, x, number)
    aligned = constant.reshape((1,) * (x.rank - constant.ndim) + constant.shape)
    wide = [axis for axis, n in enumerate(aligned.shape) if n > 1]
    if len(wide) != 1 or x.shape[wide[0]] != aligned.size or wide[0] == x.batch_axis:
        raise UnsupportedError(
            f"A constant of shape {constant.shape} with a value of shape {x.shape}.",
            "A number, or a number for each channel.",
        )
    vector = aligned.reshape(-1)
    if is_shift and linear.add_bias(b, x, wide[0], vector):
        return replace(x, sole=True)
    x = linear.channels_last(b, x, wide[0])
    return _per_channel(b, x, np.ones_like(vector), vector) if is_shift else _per_channel(b, x, vector, None)


def _per_channel(b: Builder, x: Value, factor: np.ndarray, shift: np.ndarray | None) -> Value:
    """A layer that multiplies each channel of x's layer by its factor and adds its shift."""
    shape = b.shape(x.layer)
    layer = x.layer
    if len(shape) != 3:
        layer = b.arrange(replace(x, axes=()), *_as_image(x, shape))
    weights = {"kernel": factor[None, None, :, None]} | ({} if shift is None else {"bias": shift})
    op = DepthwiseConv2D(1, use_bias=shift is not None)
    layer = b.add(op, layer, weights=weights)
    return replace(x, layer=layer, sole=True)


def _as_image(x: Value, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The factors of a layer of `shape` as (1, all others, channels)."""
    count, size = len(x.sizes), 1
    while size < shape[-1]:
        count -= 1
        size *= x.sizes[count]
    return (), tuple(range(count)), tuple(range(count, len(x.sizes)))


def softmax(b: Builder, x: Operand, axis: int) -> Operand:
    """Probabilities along the file's axis."""
    if isinstance(x, np.ndarray):
        raised = np.exp(x - x.max(axis, keepdims=True))
        return raised / raised.sum(axis, keepdims=True)
    axis = x.axis(axis)
    if axis == x.batch_axis:
        raise UnsupportedError("Softmax over the batch.")
    order = [*(n for n in b.natural_order(x) if n != axis), axis]
    order = order if any(x.axes[n] for n in order[:-1]) else order[-1:]
    return b.view(x, b.add(Softmax(), b.laid_out(x, order)), order)


def prelu(b: Builder, x: Value, slope: np.ndarray) -> Value:
    """x above 0, slope * x below; one slope, or one for each channel."""
    aligned = slope.reshape((1,) * (x.rank - slope.ndim) + slope.shape) if slope.ndim <= x.rank else slope
    wide = [axis for axis, n in enumerate(aligned.shape) if n > 1]
    if len(wide) > 1 or aligned.ndim != x.rank:
        raise UnsupportedError(f"Slopes of shape {slope.shape}.", "One slope for each channel.")
    if not wide:
        return activation(b, x, "LeakyReLU", negative_slope=float(slope.reshape(())))
    x = linear.channels_last(b, x, wide[0])
    return b.apply(b.op("PReLU"), x, weights={"alpha": slope.reshape(-1)})


def power(b: Builder, x: Operand, exponent: float) -> Operand:
    """x to a constant power that has an op."""
    if isinstance(x, np.ndarray):
        return np.power(x, x.dtype.type(exponent))
    kinds = {2.0: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1.0: "Reciprocal"}
    if exponent == 1:
        return x
    if exponent not in kinds:
        raise UnsupportedError(f"x to the power of {exponent}.", "Powers of 2, 0.5, -0.5 and -1.")
    return activation(b, x, kinds[exponent])
