"""Meanings of operators, for all formats: the layers that they become.

Operands come first, settings are keyword arguments; `forms` calls these functions by a format's table of names. Kernels
have Keras's order of axes. Exporters spell functions out: hard-swish as x * min(max(x + 3, 0), 6) / 6, SiLU as
x * sigmoid(x), BatchNormalization as a product and a sum. They become one layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import inf, isclose, prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Bias,
    BroadcastTo,
    Clip,
    Constant,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    Divide,
    Dropout,
    GlobalAveragePooling2D,
    Greater,
    GroupNormalization,
    HardSigmoid,
    HardSwish,
    LayerNormalization,
    Less,
    LocalResponseNormalization,
    Log,
    LogSoftmax,
    MatMul,
    Max,
    Maximum,
    MaxPooling2D,
    Mean,
    Minimum,
    Multiply,
    Op,
    Pad,
    PReLU,
    Reciprocal,
    ReLU,
    Rescaling,
    Reshape,
    Resize,
    Rsqrt,
    Scale,
    SiLU,
    Softmax,
    SpatialDropout2D,
    Sqrt,
    Square,
    Stream,
    Subtract,
    Sum,
    Transpose,
    Where,
    ZeroPadding2D,
)
from edgelearn.ops.pooling import Reduction
from edgelearn.ops.window import Padding, Pair, Window

from .builder import BATCH, Builder, Layer, Operand, Value, check_size, finite, in_order, runs, with_rank
from .shapes import expand, slice_axis, turn, with_last

Array = np.ndarray  # a constant
Margin = Pair  # of which numbers may be 0
MOST_FLOAT = float(np.finfo(np.float32).max)
MODES = ("constant", "edge", "reflect", "symmetric")  # of padding


def activation(b: Builder, x: Operand, op: Op) -> Any:
    """A function of each value."""
    if isinstance(x, np.ndarray):
        return op.reference_forward([x], {})
    before = b.maker(x)
    if isinstance(op, Log) and before and isinstance(before.op, Softmax):  # a logarithm of 0 where one is tiny
        return replace(x, layer=b.add(LogSoftmax(), *before.inputs), sole=True)
    return b.apply(op, x)


def clip(b: Builder, x: Operand, low: float | None = None, high: float | None = None) -> Any:
    """min(max(x, low), high); None, infinity or the largest float is no limit."""
    if isinstance(x, np.ndarray):
        return np.clip(x, low, high)
    low, high = (None if n is None or abs(n) >= MOST_FLOAT else float(n) for n in (low, high))
    if low is None and high is None:
        return x
    if low == 0 and high in (None, 6):
        return activation(b, x, ReLU(high and 6))
    return activation(b, x, Clip(low, high))


relu6 = partial(clip, low=0, high=6)


def rounded(b: Builder, x: Operand) -> Any:
    """The nearest whole numbers; gradients pass through."""
    return np.rint(x) if isinstance(x, np.ndarray) else b.apply(Stream(1.0), x)


def fake_quant(b: Builder, x: Operand, low: Operand, high: Operand, *, bits: int = 8, narrow: bool = False) -> Any:
    """Integers of so many bits between two numbers, or two for each channel, moved so that one stands for 0: constants
    are rounded to what they stand for, values are cut off at the ends. `narrow`: without the lowest integer."""
    if isinstance(low, Value) or isinstance(high, Value):
        raise UnsupportedError("Its range is computed.", "A graph for inference, with constants for it.")
    least, most, ends = int(narrow), 2**bits - 1, np.stack([low, high]).astype(np.float64)
    if bits < 2 or not np.isfinite(ends).all() or (ends[0] > 0).any() or (ends[0] >= ends[1]).any():
        raise UnsupportedError(f"{bits} bits from {ends[0].min():.6g} to {ends[1].max():.6g}.", "A range around 0.")
    step = (ends[1] - ends[0]) / (most - least)
    zero = np.clip(np.rint(least - ends[0] / step), least, most)
    first, last = (np.asarray((n - zero) * step, np.float32) for n in (least, most))
    if isinstance(x, np.ndarray):
        return (np.rint(np.clip(x, first, last) / step) * step).astype(np.float32)
    reached = (-inf, inf) if x.layer in b.inputs else b.ranges[x.layer]
    if (first - step <= reached[0]).all() and (reached[1] <= last + step).all():
        return x
    return minimum(b, maximum(b, x, first), last) if first.size > 1 else clip(b, x, float(first), float(last))


def hard_sigmoid(b: Builder, x: Operand, *, slope: float = 1 / 6, shift: float = 0.5) -> Any:
    """min(max(slope * x + shift, 0), 1)"""
    return activation(b, x, HardSigmoid(1 / 6 if isclose(slope, 1 / 6, rel_tol=1e-6) else slope, shift))


def power(b: Builder, x: Operand, exponent: float) -> Operand:
    """x to a constant power that has an op."""
    if isinstance(x, np.ndarray):
        return np.power(x, x.dtype.type(exponent))
    kinds = {2.0: Square, 0.5: Sqrt, -0.5: Rsqrt, -1.0: Reciprocal}
    if exponent == 1:
        return x
    if exponent not in kinds:
        raise UnsupportedError(f"x to the power of {exponent}.", "Powers of 2, 0.5, -0.5 and -1.")
    return activation(b, x, kinds[exponent]())


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


def neg(b: Builder, x: Operand) -> Operand:
    """-x"""
    return scale(b, x, -1.0)


def add(b: Builder, x: Operand, y: Operand) -> Operand:
    """x + y; a constant is a number, or one number for each channel."""
    found = _both(b, Add(), np.add, x, y)
    return _with_constant(b, x, y, is_shift=True) if found is None else found


def sub(b: Builder, x: Operand, y: Operand) -> Operand:
    """x - y"""
    found = _both(b, Subtract(), np.subtract, x, y)
    if found is None:
        return add(b, x, -y) if isinstance(y, np.ndarray) else add(b, neg(b, y), x)
    return found


def mul(b: Builder, x: Operand, y: Operand) -> Operand:
    """x * y; a gate that is a function of the other factor makes one layer of both: SiLU, hard-swish."""
    if isinstance(x, Value) and isinstance(y, Value) and (gated := _gated(b, x, y) or _gated(b, y, x)):
        return gated
    found = _both(b, Multiply(), np.multiply, x, y)
    return _with_constant(b, x, y, is_shift=False) if found is None else found


def div(b: Builder, x: Operand, y: Operand) -> Operand:
    """x / y; of whole numbers the largest whole number below."""
    whole = all(isinstance(n, np.ndarray) and np.issubdtype(n.dtype, np.integer) for n in (x, y))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _both(b, Divide(), np.floor_divide if whole else np.true_divide, x, y)
    if found is not None:
        return found
    if isinstance(y, Value):
        return mul(b, activation(b, y, Reciprocal()), x)
    if not np.all(y):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}' divides by 0: the file is damaged.")
    return mul(b, x, np.asarray(1 / y.astype(np.float64)))


def maximum(b: Builder, x: Operand, y: Operand) -> Operand:
    """The larger of two values, or of a value and a constant."""
    return _extreme(b, Maximum(), np.maximum, x, y)


def minimum(b: Builder, x: Operand, y: Operand) -> Operand:
    """The smaller of two values, or of a value and a constant."""
    return _extreme(b, Minimum(), np.minimum, x, y)


def average(b: Builder, values: Sequence[Operand]) -> Operand:
    """The mean of several values."""
    return scale(b, reduce(partial(add, b), values), 1 / len(values))


def squared_difference(b: Builder, x: Operand, y: Operand) -> Operand:
    """(x - y) squared."""
    return power(b, sub(b, x, y), 2.0)


def compare(b: Builder, x: Operand, y: Operand, *, kind: str) -> Operand:
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


equal, not_equal = partial(compare, kind="equal"), partial(compare, kind="not_equal")
greater, greater_equal = partial(compare, kind="greater"), partial(compare, kind="greater_equal")
less, less_equal = partial(compare, kind="less"), partial(compare, kind="less_equal")


def as_type(b: Builder, x: Operand, *, dtype: str) -> Operand:
    """Numbers of another type. Comparisons are 0 and 1 already; an input's numbers are as the caller gives them."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    truth = is_truth(b, x.layer)
    if dtype == "bool":
        return x if truth else compare(b, x, np.zeros((), np.float32), kind="not_equal")
    if not (dtype.startswith("float") or truth or _is_rounded(b, x.layer) or x.layer in b.inputs):
        raise UnsupportedError(f"A value becomes {dtype}.", "Floating-point numbers.")
    return x


def logical_and(b: Builder, x: Operand, y: Operand) -> Operand:
    """1 where both are 1; both are 0 or 1."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.logical_and(x, y)
    found = _combined(b, Multiply(), *_all_computed(b, (x, y)))
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        value, constant = _value_and_constant(x, y)
        b.masked[found.layer] = (found, value, constant.astype(bool))
    return found


def logical_not(b: Builder, x: Operand) -> Operand:
    """1 for 0, else 0"""
    if isinstance(x, Value) and is_truth(b, x.layer):
        return scale(b, x, -1.0, 1.0)
    return compare(b, x, np.zeros((), np.float32), kind="equal")


def where(b: Builder, condition: Operand, x: Operand, y: Operand) -> Operand:
    """x where the condition isn't 0, else y."""
    operands = (condition, x, y)
    if all(isinstance(operand, np.ndarray) for operand in operands):
        return np.where(*operands)  # type: ignore[call-overload]
    return _combined(b, Where(), *_all_computed(b, operands))


def softmax(b: Builder, x: Operand, *, axis: int = -1, op: Softmax | LogSoftmax = Softmax()) -> Operand:  # noqa: B008
    """Probabilities along the file's axis, or their logarithms."""
    if isinstance(x, np.ndarray):
        return np.moveaxis(op.reference_forward([np.moveaxis(x, axis, -1)], {}), -1, axis)
    order = with_last(b, x, axis)
    return b.apply(op, x, order if any(x.axes[n] for n in order[:-1]) else order[-1:])


log_softmax = partial(softmax, op=LogSoftmax())


def dropout(b: Builder, x: Value, *, rate: float, channels: int | None = None) -> Value:
    """Values left out in training; with `channels`, whole channels, the file's axis."""
    if not rate:
        return x
    if channels is None:
        return b.apply(Dropout(rate), x)
    return b.apply(SpatialDropout2D(rate), x, b.image_order(x, channels))


def identity(b: Builder, x: Operand, others: Sequence[Operand] = ()) -> Operand:
    """Operators that hand their first input on."""
    return x


def _both(b: Builder, op: Op, function: Callable, x: Operand, y: Operand) -> Operand | None:
    """Two constants, computed at once, or a layer of two values; None for a value and a constant."""
    if isinstance(x, Value) and isinstance(y, Value):
        return _combined(b, op, x, y)
    if isinstance(x, Value) or isinstance(y, Value):
        return None
    try:
        check_size(np.broadcast_shapes(x.shape, y.shape), x, y)
    except ValueError:
        raise FormatError(f"Constants of shapes {x.shape} and {y.shape} don't fit: the file is damaged.") from None
    return np.asarray(function(x, y))


def _extreme(b: Builder, op: Maximum | Minimum, function: Callable, x: Operand, y: Operand) -> Operand:
    found = _both(b, op, function, x, y)
    if found is not None:
        return found
    value, constant = _value_and_constant(x, y)
    if constant.size != 1:
        return _combined(b, op, *_all_computed(b, (value, constant)))
    limit = float(constant.reshape(()))
    return clip(b, value, limit, None) if isinstance(op, Maximum) else clip(b, value, None, limit)


def _gated(b: Builder, x: Value, gate: Value) -> Value | None:
    """x * gate as one layer, if the gate is a function of x that has one. None if not."""
    layer, source = b.maker(gate), b.source(x.layer)
    if layer is None or gate.sizes != x.sizes or gate.axes != x.axes:
        return None
    if b.source(layer.inputs[0]) == source and type(layer.op).__name__ == "Sigmoid":
        return activation(b, x, SiLU())
    if b.source(layer.inputs[0]) == source and layer.op == HardSigmoid():
        return activation(b, x, HardSwish())
    return scale(b, activation(b, x, HardSwish()), 6.0) if _shifted_relu6(b, layer) == source else None


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
    values = tuple(with_rank(x, rank) for x in values)
    shapes = [x.shape for x in values]
    larger = max(values, key=lambda x: prod(x.shape))
    order = b.natural_order(larger)
    if len(order) > 3 and len(set(shapes)) > 1 and larger.shape == np.broadcast_shapes(*shapes):
        return _merged(b, op, values, larger, order)
    return b.view(larger, b.add(op, *(b.laid_out(x, order) for x in values)), order)


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
    kinds = [tuple(x.shape[axis] == larger.shape[axis] for x in values) for axis in range(larger.rank)]
    groups = runs([axis for axis in order if larger.shape[axis] > 1], lambda a, z: kinds[a] == kinds[z])
    operands = (b.arrange(v, *(tuple(f for axis in group for f in v.axes[axis]) for group in groups)) for v in values)
    layer = b.add(op, *operands)
    factors = [factor for group in groups for axis in group for factor in larger.axes[axis]]
    places = {BATCH: BATCH} | {factor: place for place, factor in enumerate(factors)}
    axes = tuple(tuple(places[factor] for factor in axis) for axis in larger.axes)
    return Value(layer, tuple(larger.sizes[factor] for factor in factors), axes, larger.batch)


def _all_computed(b: Builder, operands: tuple[Operand, ...]) -> tuple[Value, ...]:
    """The operands, of which at least one is computed, with constants as values."""
    rank = max(len(x.shape) for x in operands)
    values = {place: with_rank(x, rank) for place, x in enumerate(operands) if isinstance(x, Value)}
    like = max(values.values(), key=lambda x: prod(x.shape))
    return tuple(
        values[n] if n in values else b.constant(np.asarray(x, np.float32), like) for n, x in enumerate(operands)
    )


def is_truth(b: Builder, layer: str) -> bool:
    """True if a layer's values are 0 and 1: of a comparison, or of several, or as an input of such a type."""
    source = b.source(layer)
    maker = b.layers.get(source)
    if maker is None or isinstance(maker.op, Greater | Less):
        return maker is not None or source in b.truths
    kinds = [type(b.layers[name].op) for name in maker.inputs if name in b.layers]
    if isinstance(maker.op, Constant):
        return bool(np.isin(maker.weights["value"], (0, 1)).all())
    differ = isinstance(maker.op, Add) and set(kinds) == {Greater, Less}
    joined = isinstance(maker.op, Multiply | Maximum | Reshape | Transpose | BroadcastTo)
    plain = maker.op == Rescaling(-1.0, 1.0)
    return differ or ((joined or plain) and all(is_truth(b, name) for name in maker.inputs))


def _is_rounded(b: Builder, layer: str) -> bool:
    """True if a layer's values are whole numbers."""
    maker = b.layers.get(b.source(layer))
    return maker is not None and maker.op == Stream(1.0)


def _value_and_constant(x: Operand, y: Operand) -> tuple[Value, np.ndarray]:
    return (x, np.asarray(y)) if isinstance(x, Value) else (y, np.asarray(x))  # type: ignore[return-value]


def _with_constant(b: Builder, first: Operand, second: Operand, is_shift: bool) -> Value:
    """x plus or times a constant of the file."""
    x, constant = _value_and_constant(first, second)
    constant = finite(constant) if is_shift else constant
    x = with_rank(x, constant.ndim)
    if constant.size == 1:
        number = float(constant.reshape(()))
        return scale(b, x, 1.0, number) if is_shift else scale(b, x, number)
    if not is_shift and (axis := _repeated(x, constant)) is not None:  # as LayerNormalization is spelled out
        order = [*(n for n in range(x.rank) if n != axis), axis]
        y = dense(b, x.transposed(tuple(order)), constant.reshape(1, -1))
        return y.transposed(tuple(order.index(n) for n in range(x.rank)))
    whole = expand(b, x, constant.shape)
    assert isinstance(whole, Value)
    if not is_shift and whole is not x and (constant == 1).all():
        return whole
    x, aligned = whole, _aligned(whole, constant)
    wide = [axis for axis, n in enumerate(aligned.shape) if n > 1]
    if is_shift and len(wide) == 1 and add_bias(b, x, wide[0], aligned.reshape(-1)):
        return replace(x, sole=True)
    order = b.natural_order(x)
    weight = in_order(aligned, order)
    op = (Bias if is_shift else Scale)(None if wide == [order[-1]] else weight.shape)
    return b.apply(op, x, order, weights={op.role: weight.reshape(-1) if op.shape is None else weight})


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


def conv(
    b: Builder, x: Value, kernel: Array, bias: Array | None = None, *, strides: Pair = (1, 1),
    padding: Padding = "valid", dilation: Pair = (1, 1), groups: int = 0, channels: int = -1,
) -> Value:  # fmt: skip
    """A convolution; one whose groups are its channels is a DepthwiseConv2D.

    Arguments:
    - `kernel`: (height, width, channels / groups, filters).
    - `bias`: (filters,).
    - `strides`, `padding`, `dilation`, `groups`: as of Conv2D; 0 groups (default): as the kernel's channels tell.
    - `channels`: the file's axis of the channels (default the last).
    """
    layer, size = b.image(x, channels), kernel.shape[:2]
    before = b.layers.get(layer)
    if before and isinstance(before.op, ZeroPadding2D):  # explicit pads become the convolution's
        padding = named(padding, b.shape(layer), size, strides, dilation)
        inside = Window.of(b.shape(layer), size, strides, padding, dilation).padding
        layer = before.inputs[0]
        vertical, horizontal = ((a[0] + c[0], a[1] + c[1]) for a, c in zip(before.op.sides, inside, strict=True))
        padding = (vertical, horizontal)
    shape = b.shape(layer)
    padding = named(padding, shape, size, strides, dilation)
    groups = groups or shape[-1] // max(kernel.shape[2], 1)
    if groups > 1 and groups == shape[-1] == kernel.shape[3]:
        op = DepthwiseConv2D(size, strides, padding, dilation, bias is not None)
        kernel = kernel.transpose(0, 1, 3, 2)
    else:
        op = Conv2D(kernel.shape[3], size, strides, padding, dilation, groups, bias is not None)
    return b.like(x, b.add(op, layer, weights=_given(kernel=kernel, bias=bias)), channels)


def depthwise(b: Builder, x: Value, kernel: Array, bias: Array | None = None, *, strides: Pair = (1, 1),
              padding: Padding = "valid", dilation: Pair = (1, 1), channels: int = -1) -> Value:  # fmt: skip
    """A convolution of each channel; `kernel` is (height, width, channels, multiplier), other arguments as of conv."""
    height, width, count, multiplier = kernel.shape
    kernel = kernel.reshape(height, width, 1, count * multiplier)
    return conv(
        b, x, kernel, bias, strides=strides, padding=padding, dilation=dilation, groups=count, channels=channels
    )


def transposed_conv(
    b: Builder, x: Value, kernel: Array, bias: Array | None = None, *, strides: Pair = (1, 1),
    padding: Padding = "valid", output_padding: Margin | None = None, dilation: Pair = (1, 1), groups: int = 1,
    channels: int = -1,
) -> Value:  # fmt: skip
    """A transposed convolution; `kernel` is (height, width, channels, filters / groups), other arguments as of
    Conv2DTranspose."""
    height, width, inputs, filters = kernel.shape
    kernel = kernel.reshape(height, width, groups, inputs // groups, filters)  # ours has filters of all groups in a row
    kernel = kernel.swapaxes(2, 3).reshape(height, width, inputs // groups, groups * filters)
    op = Conv2DTranspose(
        groups * filters, (height, width), strides, padding, output_padding, dilation, bias is not None, groups=groups
    )
    return b.apply(op, x, b.image_order(x, channels), weights=_given(kernel=kernel, bias=bias))


def dense(b: Builder, x: Value, kernel: Array, bias: Array | None = None) -> Value:
    """A matrix product over the last axis; `kernel` is (features, units), `bias` (units,).

    Features that the file has flattened in another order than the layer's are not moved: the kernel's rows are.
    """
    if kernel.ndim != 2 or x.shape[-1] != kernel.shape[0]:
        raise UnsupportedError(f"A matrix product of {x.shape} and {kernel.shape}.", "A constant (features, units).")
    weights = _given(kernel=_rows(x, kernel), bias=bias)
    units, features = kernel.shape[1], tuple(sorted(x.axes[-1]))
    points = tuple(factor for axis in x.axes[:-1] for factor in axis if factor != BATCH)
    if points:
        weights["kernel"] = weights["kernel"][None, None]
        layer = b.add(Conv2D(units, 1, use_bias=bias is not None), b.arrange(x, (), points, features), weights=weights)
    else:
        layer = b.add(Dense(units, bias is not None), b.arrange(x, features), weights=weights)
    places = {BATCH: BATCH} | {factor: place for place, factor in enumerate(points)}
    axes = tuple(tuple(places[factor] for factor in axis) for axis in x.axes[:-1])
    sizes = (*(x.sizes[factor] for factor in points), *((units,) if units > 1 else ()))
    return Value(layer, sizes, (*axes, (len(points),) if units > 1 else ()), x.batch)


def matmul(b: Builder, x: Operand, y: Operand, *, turn_x: bool = False, turn_y: bool = False) -> Operand:
    """The product of the last two axes, as numpy.matmul: of a value and a matrix a dense layer, of two values a MatMul,
    of which one may be a constant of more axes. `turn_x`, `turn_y`: their last two axes are swapped first."""
    x, y = turn(b, x) if turn_x else x, turn(b, y) if turn_y else y
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.matmul(x, y)
    if isinstance(x, Value) and isinstance(y, np.ndarray) and y.ndim == 2:
        return dense(b, x, y)
    if isinstance(y, Value) and isinstance(x, np.ndarray) and x.ndim == 2 and y.rank > 1:
        return turn(b, dense(b, turn(b, y), x.T))  # type: ignore[arg-type]
    if min(len(x.shape), len(y.shape)) < 2:
        raise UnsupportedError(f"A matrix product of {x.shape} and {y.shape}.", "Matrices.")
    rank = max(len(x.shape), len(y.shape))
    like = with_rank(x if isinstance(x, Value) else y, rank)  # type: ignore[arg-type]
    x, y = (with_rank(v, rank) if isinstance(v, Value) else b.constant(v, like) for v in (x, y))
    batches = {x.batch_axis, y.batch_axis} - {None}
    if batches & {rank - 2, rank - 1}:
        raise UnsupportedError(
            f"A matrix product of {x.shape} and {y.shape}: the batch is a matrix's axis.", "Keep it apart."
        )
    outer = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (expand(b, v, (*outer, *v.shape[-2:])) for v in (x, y))
    assert isinstance(x, Value) and isinstance(y, Value)
    order = [*(axis for axis in range(rank - 2) if axis not in batches), rank - 2, rank - 1]
    layer = b.add(MatMul(), b.laid_out(x, order), b.laid_out(y, order))
    return b.view(y if x.batch_axis is None else x, layer, order)


def batchnorm(
    b: Builder, x: Value, gamma: Array | None, beta: Array | None, mean: Array, variance: Array, *,
    epsilon: float = 1e-3, momentum: float = 0.99, channels: int = -1,
) -> Value:  # fmt: skip
    """BatchNormalization over the file's axis `channels`; gamma is 1 and beta 0 where they are None."""
    frozen = tuple(role for role, array in (("gamma", gamma), ("beta", beta)) if array is None)
    gamma = np.ones_like(mean) if gamma is None else gamma
    beta = np.zeros_like(mean) if beta is None else beta
    weights = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    channels, last = x.axis(channels), len(x.sizes)
    axis = x.axes[channels]
    if axis != tuple(range(last - len(axis), last)) or b.shape(x.layer)[-1] != x.shape[channels]:
        order = with_last(b, x, channels)
        x = b.view(x, b.laid_out(x, order), order)
    return b.apply(BatchNormalization(momentum, epsilon), x, weights=weights, frozen=frozen)


def layer_normalization(
    b: Builder, x: Value, gamma: Array | None = None, beta: Array | None = None, *, axes: Sequence[int],
    epsilon: float = 1e-3,
) -> Value:  # fmt: skip
    """Mean 0 and variance 1 over the file's `axes` of each example, then gamma and beta, which have these axes."""
    axes = [x.axis(axis) for axis in axes]
    natural = b.natural_order(x)
    last = [axis for axis in natural if axis in axes]
    if len(last) != len(axes):
        raise UnsupportedError("It normalizes the batch.", "Axes of an example.")
    order = [*(axis for axis in natural if axis not in axes), *last]
    sizes, turned = [x.shape[axis] for axis in axes], [axes.index(axis) for axis in last]
    weights = _given(gamma=gamma, beta=beta)
    weights = {role: np.broadcast_to(array, sizes).transpose(turned) for role, array in weights.items()}
    op = LayerNormalization(epsilon, beta is not None, gamma is not None, tuple(range(-len(axes), 0)))
    return b.apply(op, x, order, weights=weights)


def group_normalization(
    b: Builder, x: Value, gamma: Array | None = None, beta: Array | None = None, *, groups: int = -1,
    epsilon: float = 1e-3, channels: int = -1,
) -> Value:  # fmt: skip
    """Mean 0 and variance 1 over all values of a group of channels; -1: over each channel by itself."""
    op = GroupNormalization(epsilon, beta is not None, gamma is not None, groups)
    return b.apply(op, x, b.image_order(x, channels), weights=_given(gamma=gamma, beta=beta))


def local_response(b: Builder, x: Value, *, size: int, alpha: float, beta: float, bias: float, average: bool = False,
                   channels: int = -1) -> Value:  # fmt: skip
    """Normalization over neighbouring channels; settings as of LocalResponseNormalization."""
    op = LocalResponseNormalization(size, alpha, beta, bias, average=average)
    return b.apply(op, x, b.image_order(x, channels))


def unit_length(b: Builder, x: Value, *, axis: int = -1) -> Value:
    """x / sqrt(sum of x² along the file's axis)"""
    order = with_last(b, x, axis)
    order = [*[None] * (3 - len(order)), *order]
    layer = b.laid_out(x, order)
    squares = b.add(Square(), layer, name=f"{b.operator.name}_squares")
    total = b.add(Sum((len(order),)), squares, name=f"{b.operator.name}_sum")
    inverse = b.add(Rsqrt(), total, name=f"{b.operator.name}_inverse")
    return b.view(x, b.add(Multiply(), layer, inverse), order)


def prelu(b: Builder, x: Value, slope: Array) -> Value:
    """x above 0, slope * x below; the slopes are repeated to x."""
    order = b.natural_order(x)
    alpha = in_order(_aligned(x, slope), order)
    op = PReLU(tuple(place + 1 for place, n in enumerate(alpha.shape) if n == 1))
    return b.apply(op, x, order, weights={"alpha": alpha})


def add_bias(b: Builder, x: Value, axis: int, bias: Array) -> bool:
    """Give the layer that makes `x`, and that nothing else reads, a bias for each element of the file's `axis`. False
    if it can't."""
    layer, last = b.maker(x), len(x.sizes) - 1
    if bias.size > 1 and x.axes[axis] != (last,):
        return False
    if not x.sole or layer is None or not isinstance(layer.op, Conv2D | DepthwiseConv2D | Dense) or layer.op.use_bias:
        return False
    if layer.shape[-1] != bias.size:
        return False
    layer.op = replace(layer.op, use_bias=True)
    layer.weights["bias"] = np.ascontiguousarray(bias, np.float32)
    return True


def named(padding: Padding, shape: tuple[int, ...], kernel: Pair, strides: Pair, dilation: Pair = (1, 1)) -> Padding:
    """ "valid" or "same" where the padding in pixels is that. Three other names stand for pixels: "same_upper",
    "same_lower" (the larger half at the beginning) and "causal" (all of it in front)."""
    if padding == "causal":
        padding = (0, 0), (dilation[1] * (kernel[1] - 1), 0)
    elif padding in ("same_upper", "same_lower"):
        (top, bottom), (left, right) = Window.of(shape, kernel, strides, "same", dilation).padding
        is_upper = padding == "same_upper"
        padding = ((top, bottom), (left, right)) if is_upper else ((bottom, top), (right, left))
    for name in ("valid", "same") if not isinstance(padding, str) else ():
        try:
            if Window.of(shape, kernel, strides, name, dilation).padding == padding:
                return name
        except ValueError:
            continue
    return padding


def _given(**arrays: Array | None) -> dict[str, Array]:
    return {role: array for role, array in arrays.items() if array is not None}


def _rows(x: Value, kernel: Array) -> Array:
    """The kernel with its rows in the order in which the layer has the features."""
    factors = x.axes[-1]
    if list(factors) == sorted(factors):
        return kernel
    split = kernel.reshape(*(x.sizes[factor] for factor in factors), kernel.shape[1])
    order = [factors.index(factor) for factor in sorted(factors)]
    return split.transpose(*order, len(factors)).reshape(kernel.shape)


def max_pool(
    b: Builder, x: Value, *, size: Pair, strides: Pair | None = None, padding: Padding = "valid", ceil: bool = False,
    channels: int = -1,
) -> Value:  # fmt: skip
    """The maximum of each window; padding is ignored.

    Arguments:
    - `size`, `strides`, `padding`: as of MaxPooling2D.
    - `ceil`: the last windows may reach over the edge, as with ceil_mode.
    - `channels`: the file's axis of the channels (default the last).
    """
    layer, strides = b.image(x, channels), strides or size
    padding = _reaching_over(b.shape(layer), size, strides, padding) if ceil else padding
    padding = named(padding, b.shape(layer), size, strides)
    return b.like(x, b.add(MaxPooling2D(size, strides, padding), layer), channels)


def average_pool(
    b: Builder, x: Value, *, size: Pair, strides: Pair | None = None, padding: Padding = "valid", ceil: bool = False,
    counts_padding: bool = False, channels: int = -1,
) -> Value:  # fmt: skip
    """The mean of each window; `counts_padding`: with the zeros around the image, as with count_include_pad."""
    layer, strides = b.image(x, channels), strides or size
    if padding == "same_lower":
        padding = named(padding, b.shape(layer), size, strides)
    over = _reaching_over(b.shape(layer), size, strides, padding) if ceil else padding
    if counts_padding and not isinstance(padding, str) and not isinstance(over, str) and any(map(any, padding)):
        layer = b.add(ZeroPadding2D(padding), layer, name=f"{b.operator.name}_pad")
        (_, bottom), (_, right) = over
        over = ((0, bottom - padding[0][1]), (0, right - padding[1][1]))
    over = named(over, b.shape(layer), size, strides)
    if size == b.shape(layer)[:2] and over == "valid":  # an image of one pixel
        mean = b.add(GlobalAveragePooling2D(), layer)
        value = Value.of(mean, b.shape(mean), (0,))
        return b.like(x, b.arrange(value, (), (), value.axes[1]), channels)
    return b.like(x, b.add(AveragePooling2D(size, strides, over), layer), channels)


def adaptive_average_pool(b: Builder, x: Value, *, size: Pair, channels: int = -1) -> Operand:
    """The means of `size` equal parts of the image."""
    if size == (1, 1):
        return global_pool(b, x, keepdims=True, channels=channels)
    height, width, _ = b.shape(b.image(x, channels))
    if (height, width) == size:
        return x
    if height % size[0] or width % size[1]:
        return b.apply(AdaptiveAveragePooling2D(size), x, b.image_order(x, channels))
    return average_pool(b, x, size=(height // size[0], width // size[1]), channels=channels)


def global_pool(
    b: Builder, x: Value, *, kind: type[Reduction] = Mean, keepdims: bool = False, channels: int = -1
) -> Operand:
    """The mean or the maximum of each channel."""
    return reduced(b, x, [axis for axis in range(1, x.rank) if axis != x.axis(channels)], kind=kind, keepdims=keepdims)


def reduced(b: Builder, x: Operand, axes: Sequence[int] | None = None, *, kind: type[Reduction] = Mean,
           keepdims: bool = False) -> Operand:  # fmt: skip
    """The mean, the sum or the maximum over some of the file's axes.

    Arguments:
    - `axes`: of the file (default None: all but the batch).
    - `kind`: Mean, Sum or Max.
    - `keepdims`: leave them with size 1 (default False).
    """
    if isinstance(x, np.ndarray):
        function = {Mean: np.mean, Sum: np.sum, Max: np.max}[kind]
        return np.asarray(function(x, None if axes is None else tuple(axes), keepdims=keepdims))
    every = [axis for axis in range(x.rank) if axis != x.batch_axis]
    reduced = {x.axis(int(axis)) for axis in (every if axes is None else axes)}
    if x.batch_axis in reduced:
        raise UnsupportedError("It reduces the batch.", "Axes of an example.")
    if any(x.axes[axis] for axis in reduced):
        order = list(b.natural_order(x))
        places = tuple(place for place, axis in enumerate(order) if axis in reduced)
        if kind is Mean and len(order) == 3 and places == (0, 1):
            x = b.view(x, b.add(GlobalAveragePooling2D(), b.laid_out(x, order)), order[2:])
        else:
            x = b.apply(kind(tuple(place + 1 for place in places)), x, order)
    return x if keepdims else x.squeezed(tuple(reduced))


mean, total, largest = (partial(reduced, kind=kind) for kind in (Mean, Sum, Max))
global_average_pool, global_max_pool = partial(global_pool, kind=Mean), partial(global_pool, kind=Max)


def pad(
    b: Builder, x: Operand, sides: Sequence[Pair], value: float = 0.0, axes: Sequence[int] | None = None, *,
    mode: str = "constant",
) -> Operand:  # fmt: skip
    """More values around those that are there; a negative number takes some away.

    Arguments:
    - `sides`: (before, after) for each of the file's `axes` (default: all).
    - `value`, `mode`: as of Pad.
    """
    rank, sides = len(x.shape), [(int(before), int(after)) for before, after in sides]
    if axes is not None:
        given = dict(zip((axis % rank for axis in axes), sides, strict=True))
        sides = [given.get(axis, (0, 0)) for axis in range(rank)]
    if mode not in MODES:
        raise UnsupportedError(f"mode='{mode}'.", f"{', '.join(MODES)}.")
    if isinstance(x, np.ndarray):
        check_size(tuple(n + sum(side) for n, side in zip(x.shape, sides, strict=True)))
        return np.pad(x, sides, mode, **({"constant_values": value} if mode == "constant" else {}))  # type: ignore
    for axis, (before, after) in enumerate(sides):
        if before < 0 or after < 0:
            x = slice_axis(b, x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
            assert isinstance(x, Value)
    sides = [(max(before, 0), max(after, 0)) for before, after in sides]
    padded = [axis for axis, side in enumerate(sides) if any(side)]
    if not padded:
        return x
    if x.batch_axis in padded:
        raise UnsupportedError("It pads the batch.", "Padding of an example.")
    order: list[int | None] = list(b.natural_order(x))
    order = [*[None] * (3 - len(order)), *order]
    around = tuple((0, 0) if axis is None else sides[axis] for axis in order)
    if len(order) == 3 and not any(around[2]) and mode == "constant" and value == 0:
        return b.apply(ZeroPadding2D((around[0], around[1])), x, order)
    return b.apply(Pad(around, mode, value), x, order)


def _reaching_over(shape: tuple[int, ...], size: Pair, strides: Pair, padding: Padding) -> Padding:
    """The padding with which the windows cover the whole image. A window starts inside the image or before it."""
    if isinstance(padding, str):
        return padding
    sides = []
    for n, window, stride, (before, after) in zip(shape[:2], size, strides, padding, strict=True):
        count = -(-(n + before + after - window) // stride) + 1
        if (count - 1) * stride >= n + before:
            count -= 1
        sides.append((before, max(after, (count - 1) * stride + window - n - before)))
    return tuple(sides)  # type: ignore[return-value]


def resize(
    b: Builder, x: Value, size: Sequence[int], *, mode: str, coordinates: str = "half_pixel",
    rounding: str = "round_prefer_ceil", scale: tuple[float, float] | None = None, channels: int = -1,
) -> Value:  # fmt: skip
    """An image of another size, (height, width); other arguments as of Resize, where ONNX's "linear" is "bilinear"."""
    height, width = size
    if b.shape(b.image(x, channels))[:2] == (height, width):
        return x
    names = {"linear": "bilinear", "nearest": "nearest", "bilinear": "bilinear"}
    if mode not in names:
        raise UnsupportedError(f"Interpolation '{mode}'.", "nearest or bilinear.")
    return b.apply(Resize((height, width), names[mode], coordinates, rounding, scale), x, b.image_order(x, channels))


def resize_between(b: Builder, x: Value, size: Sequence[int], *, mode: str, align_corners: bool = False,
                   half_pixel: bool = False) -> Value:  # fmt: skip
    """An image of another size, by TensorFlow's two switches."""
    if align_corners and half_pixel and mode == "nearest":
        raise UnsupportedError("align_corners with half_pixel_centers.", "One of them.")
    coordinates = "align_corners" if align_corners else "half_pixel" if half_pixel else "asymmetric"
    rounding = "round_prefer_ceil" if align_corners or half_pixel else "floor"
    return resize(b, x, size, mode=mode, coordinates=coordinates, rounding=rounding)


resize_bilinear, resize_nearest = (partial(resize_between, mode=mode) for mode in ("bilinear", "nearest"))


def transposed_conv_to(
    b: Builder, shape: Operand, kernel: Array, x: Value, bias: Array | None = None, *, strides: Pair, padding: Padding,
    channels: int = -1, grows: bool = False,
) -> Value:  # fmt: skip
    """A transposed convolution whose output has this shape. `grows`: without padding, rows and columns that no kernel
    reaches may be cut off, or be more than Keras's."""
    wanted, more = shape.reshape(-1).tolist() if isinstance(shape, np.ndarray) else None, None
    if grows and wanted and padding == "valid":
        ends = zip(wanted[1:3], x.shape[1:3], strides, kernel.shape[:2], strict=True)
        padding, extra = ((0, 0), (0, 0)), [n - (size - 1) * stride - reach for n, size, stride, reach in ends]
        if min(extra) < 0:
            raise UnsupportedError(f"An output of {tuple(wanted[1:3])}, which cuts the kernels off.", "Keras's sizes.")
        more = extra[0], extra[1]
    y = transposed_conv(b, x, kernel, bias, strides=strides, padding=padding, output_padding=more, channels=channels)
    if wanted is not None and list(y.shape[1:]) != wanted[1:]:
        raise UnsupportedError(f"An output of {tuple(wanted)}; expected {y.shape}.", "Keras's sizes.")
    return y
