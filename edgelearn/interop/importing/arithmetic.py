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
from edgelearn.ops import (
    Add,
    Bias,
    BroadcastTo,
    Divide,
    Greater,
    HardSigmoid,
    HardSwish,
    Less,
    LocalResponseNormalization,
    Log,
    LogSoftmax,
    Maximum,
    Minimum,
    Multiply,
    Op,
    PReLU,
    ReLU,
    Rescaling,
    Reshape,
    Scale,
    SiLU,
    Softmax,
    Square,
    Subtract,
    Sum,
    Transpose,
    Where,
)  # fmt: skip

from . import linear, shapes
from .builder import Builder, Layer, check_size, finite, in_order
from .value import BATCH, Value

Operand = Value | np.ndarray


def activation(b: Builder, x: Operand, op: Op | str, **config) -> Any:
    """A function of each value: an op, or the class name and the settings of one."""
    op = b.op(op, **config) if isinstance(op, str) else op
    if isinstance(x, np.ndarray):
        return op.reference_forward([x], {})
    before = b.maker(x)
    if isinstance(op, Log) and before and isinstance(before.op, Softmax):  # a logarithm of 0 where one is tiny
        return replace(x, layer=b.add(LogSoftmax(), *before.inputs), sole=True)
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
    return activation(b, x, HardSigmoid(slope, shift))


def add(b: Builder, x: Operand, y: Operand) -> Operand:
    """x + y; a constant is a number, or one number for each channel."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.add, x, y)
    if isinstance(x, Value) and isinstance(y, Value):
        return _combined(b, Add(), x, y)
    return _with_constant(b, *_value_and_constant(x, y), is_shift=True)


def subtract(b: Builder, x: Operand, y: Operand) -> Operand:
    """x - y"""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.subtract, x, y)
    if isinstance(y, np.ndarray):
        return add(b, x, -y)
    if isinstance(x, np.ndarray):
        return add(b, scale(b, y, -1.0), x)
    return _combined(b, Subtract(), x, y)


def multiply(b: Builder, x: Operand, y: Operand) -> Operand:
    """x * y; a gate that is a function of the other factor makes one layer of both: SiLU, hard-swish."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.multiply, x, y)
    if isinstance(x, Value) and isinstance(y, Value):
        return _gated(b, x, y) or _gated(b, y, x) or _combined(b, Multiply(), x, y)
    return _with_constant(b, *_value_and_constant(x, y), is_shift=False)


def divide(b: Builder, x: Operand, y: Operand) -> Operand:
    """x / y"""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            both = np.issubdtype(x.dtype, np.integer) and np.issubdtype(y.dtype, np.integer)
            return _constant(np.floor_divide if both else np.true_divide, x, y)
    if isinstance(y, Value):
        if isinstance(x, np.ndarray):
            return multiply(b, activation(b, y, "Reciprocal"), x)
        return _combined(b, Divide(), x, y)
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
        return activation(b, replace(x, layer=gate), HardSigmoid())
    return b.apply(Rescaling(factor, shift), x)


def _constant(function: Callable, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    try:
        check_size(np.broadcast_shapes(x.shape, y.shape), x, y)
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
    if kind == "HardSigmoid" and layer.op == HardSigmoid() and b.source(layer.inputs[0]) == b.source(x.layer):
        return activation(b, x, HardSwish())
    if _shifted_relu6(b, layer) == b.source(x.layer):
        return scale(b, activation(b, x, HardSwish()), 6.0)
    return None


def _shifted_relu6(b: Builder, layer: Layer | None) -> str | None:
    """The layer x if `layer` is relu6(x + 3), else None."""
    if layer is None or not isinstance(layer.op, ReLU) or layer.op.max_value != 6:
        return None
    before = b.layers.get(b.source(layer.inputs[0]))
    return b.source(before.inputs[0]) if before and before.op == Rescaling(1.0, 3.0) else None


def _combined(b: Builder, op: Op, *values: Value) -> Value:
    """A layer that reads all values, where sizes of 1 are repeated."""
    values = _by_themselves(b, values)
    first = values[0]
    if all((x.sizes, x.axes, b.shape(x.layer)) == (first.sizes, first.axes, b.shape(first.layer)) for x in values):
        return replace(first, layer=b.add(op, *(x.layer for x in values)), sole=True)
    rank = max(x.rank for x in values)
    values = tuple(_with_rank(x, rank) for x in values)
    shapes = [x.shape for x in values]
    larger = max(values, key=lambda x: prod(x.shape))
    order = b.natural_order(larger)
    if len(order) > 3 and len(set(shapes)) > 1 and larger.shape == np.broadcast_shapes(*shapes):
        return _merged(b, op, values, larger, order)
    return b.view(larger, b.add(op, *(b.laid_out(x, order) for x in values)), order)


def _with_rank(x: Value, rank: int) -> Value:
    while x.rank < rank:
        x = x.expanded(0)
    return x


def _by_themselves(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values without a BroadcastTo before one of them that the op does, too."""
    shape = np.broadcast_shapes(*(x.shape for x in values))
    found = list(values)
    for place, x in enumerate(values):
        repeated, source = b.repeated.get(x.layer, (None, x))
        same = repeated is not None and (x.sizes, x.axes) == (repeated.sizes, repeated.axes)
        others = [*found[:place], source, *found[place + 1 :]]
        if same and np.broadcast_shapes(*(other.shape for other in others)) == shape:
            found = others
    return tuple(found)


def _merged(b: Builder, op: Op, values: tuple[Value, ...], larger: Value, order: tuple[int, ...]) -> Value:
    """As `_combined`, with one axis for neighbours that are repeated in the same values: ops repeat the outer axes."""
    groups: list[list[int]] = []
    kinds = [tuple(x.shape[axis] == larger.shape[axis] for x in values) for axis in range(larger.rank)]
    for axis in (axis for axis in order if larger.shape[axis] > 1):
        if groups and kinds[groups[-1][-1]] == kinds[axis]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    operands = (b.arrange(v, *(tuple(f for axis in group for f in v.axes[axis]) for group in groups)) for v in values)
    layer = b.add(op, *operands)
    factors = [factor for group in groups for axis in group for factor in larger.axes[axis]]
    places = {BATCH: BATCH} | {factor: place for place, factor in enumerate(factors)}
    axes = tuple(tuple(places[factor] for factor in axis) for axis in larger.axes)
    return Value(layer, tuple(larger.sizes[factor] for factor in factors), axes, larger.batch)


def _all_computed(b: Builder, operands: tuple[Operand, ...]) -> tuple[Value, ...]:
    """The operands, of which at least one is computed, with constants as values."""
    rank = max(len(x.shape) for x in operands)
    values = {place: _with_rank(x, rank) for place, x in enumerate(operands) if isinstance(x, Value)}
    like = max(values.values(), key=lambda x: prod(x.shape))
    return tuple(
        values[n] if n in values else b.constant(np.asarray(x, np.float32), like) for n, x in enumerate(operands)
    )


def compare(b: Builder, kind: str, x: Operand, y: Operand) -> Operand:
    """1 where the comparison holds, else 0. `kind`: greater, less, greater_equal, less_equal, equal or not_equal."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.asarray(getattr(np, kind)(x, y))
    a, c = _all_computed(b, (x, y))
    if kind in ("greater", "less_equal"):
        found = _combined(b, Greater(), a, c)
    elif kind in ("less", "greater_equal"):
        found = _combined(b, Less(), a, c)
    else:
        found = _combined(b, Add(), _combined(b, Greater(), a, c), _combined(b, Less(), a, c))
    return found if kind in ("greater", "less", "not_equal") else scale(b, found, -1.0, 1.0)


def as_type(b: Builder, x: Value, kind: str) -> Operand:
    """A value as numbers of another type. Comparisons are 0 and 1 already; an input's numbers are as the caller gives
    them."""
    whole = _is_truth(b, x.layer)
    if kind == "bool":
        return x if whole else compare(b, "not_equal", x, np.zeros((), np.float32))
    if not kind.startswith("float") and not whole and x.layer not in b.inputs:
        raise UnsupportedError(f"A value becomes {kind}.", "Floating-point numbers.")
    return x


def _is_truth(b: Builder, layer: str) -> bool:
    """True if a layer's values are 0 and 1: of a comparison, or of several."""
    maker = b.layers.get(b.source(layer))
    if maker is None or isinstance(maker.op, Greater | Less):
        return maker is not None
    kinds = [type(b.layers[name].op) for name in maker.inputs if name in b.layers]
    differ = isinstance(maker.op, Add) and set(kinds) == {Greater, Less}
    joined = isinstance(maker.op, Multiply | Maximum | Rescaling | Reshape | Transpose | BroadcastTo)
    plain = not isinstance(maker.op, Rescaling) or maker.op == Rescaling(-1.0, 1.0)
    return differ or (joined and plain and all(_is_truth(b, name) for name in maker.inputs))


def where(b: Builder, condition: Operand, x: Operand, y: Operand) -> Operand:
    """x where the condition isn't 0, else y."""
    operands = (condition, x, y)
    if all(isinstance(operand, np.ndarray) for operand in operands):
        return np.where(*operands)  # type: ignore[call-overload]
    return _combined(b, Where(), *_all_computed(b, operands))


def _value_and_constant(x: Operand, y: Operand) -> tuple[Value, np.ndarray]:
    if not isinstance(x, Value):
        x, y = y, x
    if not isinstance(x, Value) or isinstance(y, Value | None):
        raise TypeError("an operand is missing")
    return x, np.asarray(y)  # arithmetic makes a number of an array without axes


def _with_constant(b: Builder, x: Value, constant: np.ndarray, is_shift: bool) -> Value:
    """x plus or times a constant of the file."""
    constant = finite(constant) if is_shift else constant
    while constant.ndim > x.rank:
        x = x.expanded(0)
    if constant.size == 1:
        number = float(constant.reshape(()))
        return scale(b, x, 1.0, number) if is_shift else scale(b, x, number)
    if not is_shift and (axis := _repeated(x, constant)) is not None:  # as LayerNormalization is spelled out
        order = [*(n for n in range(x.rank) if n != axis), axis]
        y = linear.dense(b, x.transposed(tuple(order)), constant.reshape(1, -1))
        return y.transposed(tuple(order.index(n) for n in range(x.rank)))
    whole = shapes.expand(b, x, constant.shape)
    assert isinstance(whole, Value)
    if not is_shift and whole is not x and (constant == 1).all():
        return whole
    x, aligned = whole, _aligned(whole, constant)
    wide = [axis for axis, n in enumerate(aligned.shape) if n > 1]
    if is_shift and len(wide) == 1 and linear.add_bias(b, x, wide[0], aligned.reshape(-1)):
        return replace(x, sole=True)
    order = b.natural_order(x)
    weight = in_order(aligned, order)
    op = (Bias if is_shift else Scale)(None if wide == [order[-1]] else weight.shape)
    weights = {op.role: weight.reshape(-1) if op.shape is None else weight}
    return b.view(x, b.add(op, b.laid_out(x, order), weights=weights), order)


def _repeated(x: Value, constant: np.ndarray) -> int | None:
    """The axis of size 1 along which x is repeated to the size of the constant, None if there is none."""
    sizes = (1,) * (x.rank - constant.ndim) + constant.shape
    wide = [axis for axis, n in enumerate(sizes) if n > 1]
    return wide[0] if len(wide) == 1 and wide[0] != x.batch_axis and x.shape[wide[0]] == 1 else None


def _aligned(x: Value, constant: np.ndarray) -> np.ndarray:
    """The constant with an axis for each of x's. Raises UnsupportedError if it isn't repeated to an example."""
    aligned = constant.reshape((1,) * (x.rank - constant.ndim) + constant.shape)
    fits = aligned.ndim == x.rank and all(n in (1, size) for n, size in zip(aligned.shape, x.shape, strict=True))
    if not fits or (x.batch_axis is not None and aligned.shape[x.batch_axis] > 1):
        raise UnsupportedError(f"A constant of shape {constant.shape} with a value of shape {x.shape}.", "Equal sizes.")
    return aligned


def softmax(b: Builder, x: Operand, axis: int, op: Softmax | LogSoftmax = Softmax()) -> Operand:  # noqa: B008
    """Probabilities along the file's axis, or their logarithms."""
    if isinstance(x, np.ndarray):
        return np.moveaxis(op.reference_forward([np.moveaxis(x, axis, -1)], {}), -1, axis)
    axis = x.axis(axis)
    if axis == x.batch_axis:
        raise UnsupportedError(f"{type(op).__name__} over the batch.")
    order = [*(n for n in b.natural_order(x) if n != axis), axis]
    order = order if any(x.axes[n] for n in order[:-1]) else order[-1:]
    return b.view(x, b.add(op, b.laid_out(x, order)), order)


def log_softmax(b: Builder, x: Operand, axis: int) -> Operand:
    """Logarithms of probabilities along the file's axis."""
    return softmax(b, x, axis, LogSoftmax())


def extreme(b: Builder, x: Operand, y: Operand, largest: bool) -> Operand:
    """The larger, or the smaller, of two values, or of a value and a number."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return _constant(np.maximum if largest else np.minimum, x, y)
    if isinstance(x, Value) and isinstance(y, Value):
        return _combined(b, Maximum() if largest else Minimum(), x, y)
    value, constant = _value_and_constant(x, y)
    if constant.size != 1:
        return _combined(b, Maximum() if largest else Minimum(), *_all_computed(b, (value, constant)))
    limit = float(constant.reshape(()))
    return clip(b, value, limit, None) if largest else clip(b, value, None, limit)


def local_response(b: Builder, x: Value, op: LocalResponseNormalization, channels: int = -1) -> Value:
    """Normalization over neighbouring channels."""
    return b.like(x, b.add(op, b.image(x, channels)), channels)


def unit_length(b: Builder, x: Value, axis: int = -1) -> Value:
    """x / sqrt(sum of x² along the file's axis)"""
    order = [*(n for n in b.natural_order(x) if n != x.axis(axis)), x.axis(axis)]
    order = [*[None] * (3 - len(order)), *order]
    layer = b.laid_out(x, order)
    squares = b.add(Square(), layer, name=f"{b.operator.name}_squares")
    total = b.add(Sum((len(order),)), squares, name=f"{b.operator.name}_sum")
    inverse = b.add(b.op("Rsqrt"), total, name=f"{b.operator.name}_inverse")
    return b.view(x, b.add(Multiply(), layer, inverse), order)


def prelu(b: Builder, x: Value, slope: np.ndarray) -> Value:
    """x above 0, slope * x below; the slopes are repeated to x."""
    order = b.natural_order(x)
    alpha = in_order(_aligned(x, slope), order)
    op = PReLU(tuple(place + 1 for place, n in enumerate(alpha.shape) if n == 1))
    return b.view(x, b.add(op, b.laid_out(x, order), weights={"alpha": alpha}), order)


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
