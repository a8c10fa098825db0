"""ONNX files of opset 7 and later become networks. It needs the package `onnx`: `pip install 'edgelearn[formats]'`.

Sizes are compared with the bytes there are before an array is made.
Operators: https://onnx.ai/onnx/operators. Format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import isclose, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import LocalResponseNormalization, LogSoftmax, Max, Mean, ReLU, Softmax, Sum
from edgelearn.ops.window import Window

from . import operators, shapes
from .builder import Builder, Value, check_size, filled
from .canonical import ForeignGraph, Operator, Quantization, TensorInfo, gives_channels_first, takes_channels_first
from .formats import GraphReader, graph_format, register

Operand = Value | np.ndarray
Pair = tuple[int, int]


def as_keras(kernel: np.ndarray) -> np.ndarray:
    """(out, in, height, width) or (out, in, width) as (height, width, in, out)."""
    kernel = kernel[:, :, None] if kernel.ndim == 3 else kernel
    return kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel


def pairs(op: Operator, axes: int, *names: str) -> list[Pair]:
    """Attributes with a number for each of `axes` spatial axes, as (height, width); default 1."""
    found = []
    for name in names:
        values = [int(n) for n in op.attributes.get(name) or [1] * axes]
        if len(values) != axes or axes not in (1, 2):
            raise UnsupportedError(f"{axes} spatial axes, {name}={values}.", "Images (2) and sequences (1).")
        found.append((1, values[0]) if axes == 1 else (values[0], values[1]))
    return found


def padding_of(op: Operator, x: Value, size: Pair, strides: Pair, dilation: Pair = (1, 1)) -> str | tuple[Pair, Pair]:
    """The padding of windows of `size` over the image or the sequence `x`."""
    axes = x.rank - 2
    automatic = op.attributes.get("auto_pad", "NOTSET")
    if automatic == "SAME_UPPER":
        return "same"
    if automatic == "VALID":
        return "valid"
    if automatic == "SAME_LOWER":
        shape = (1, *x.shape[2:], x.shape[1]) if axes == 1 else (*x.shape[2:], x.shape[1])
        (top, bottom), (left, right) = Window.of(shape, size, strides, "same", dilation).padding
        return (bottom, top), (right, left)
    if automatic != "NOTSET":
        raise UnsupportedError(f"auto_pad='{automatic}'.", "SAME_UPPER, SAME_LOWER, VALID or pads.")
    pads = [int(n) for n in op.attributes.get("pads") or [0] * 2 * axes]
    if axes == 1:
        return (0, 0), (pads[0], pads[1])
    return (pads[0], pads[2]), (pads[1], pads[3])


def known(x: Operand | None, what: str) -> np.ndarray:
    if not isinstance(x, np.ndarray):
        raise UnsupportedError(f"Its {what} is computed, or missing.", "A constant.")
    return x


def integers(x: Operand) -> list[int]:
    return [int(n) for n in known(x, "shape").reshape(-1)]


CHANNELS = 1  # axis of the channels


def conv(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    kernel = known(kernel, "kernel")
    strides, dilation = pairs(op, kernel.ndim - 2, "strides", "dilations")
    groups, kernel = op.attributes.get("group", 1), as_keras(kernel)
    padding = padding_of(op, x, (kernel.shape[0], kernel.shape[1]), strides, dilation)
    return operators.conv(
        b, x, kernel, bias, strides=strides, padding=padding, dilation=dilation, groups=groups,
        channels=CHANNELS,
    )  # fmt: skip


def conv_transpose(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    kernel = known(kernel, "kernel")
    strides, dilation = pairs(op, kernel.ndim - 2, "strides", "dilations")
    if "output_shape" in op.attributes:
        raise UnsupportedError("A transposed convolution with output_shape.", "pads and output_padding.")
    more = (0,) * (4 - kernel.ndim) + tuple(op.attributes.get("output_padding", (0,) * (kernel.ndim - 2)))
    kernel = kernel[:, :, None] if kernel.ndim == 3 else kernel  # (in, out, height, width)
    if op.attributes.get("auto_pad", "NOTSET") == "SAME_LOWER":
        raise UnsupportedError("A transposed convolution with auto_pad='SAME_LOWER'.", "SAME_UPPER, VALID or pads.")
    padding = padding_of(op, x, kernel.shape[2:], strides, dilation)
    return operators.transposed_conv(
        b, x, kernel.transpose(2, 3, 0, 1), bias, strides=strides, padding=padding,
        output_padding=(more[0], more[1]), dilation=dilation, groups=op.attributes.get("group", 1), channels=CHANNELS,
    )  # fmt: skip


def gemm(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand | None = None) -> Operand:
    a = op.attributes
    x = shapes.transpose(b, x, (1, 0)) if a.get("transA", 0) else x
    kernel = shapes.transpose(b, kernel, (1, 0)) if a.get("transB", 0) else kernel
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    kernel = kernel if alpha == 1 else operators.scale(b, kernel, alpha)
    if not isinstance(x, Value) or not isinstance(kernel, np.ndarray) or isinstance(bias, Value):
        y = operators.matmul(b, x, kernel)
        return y if bias is None else operators.add(b, y, operators.scale(b, bias, beta))
    if bias is None:
        return operators.dense(b, x, kernel)
    array = np.broadcast_to(bias if beta == 1 else bias * bias.dtype.type(beta), (1, kernel.shape[1]))[0]
    return operators.dense(b, x, kernel, array)


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    return operators.matmul(b, x, y)


def batchnorm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> Value:
    if op.attributes.get("training_mode", 0):
        raise UnsupportedError("training_mode=1.", "An export for inference; edgelearn trains it all the same.")
    if not op.attributes.get("spatial", 1):
        raise UnsupportedError("Statistics of each pixel (spatial=0).", "Statistics of channels.")
    epsilon, momentum = op.attributes.get("epsilon", 1e-5), op.attributes.get("momentum", 0.9)
    return operators.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, momentum=momentum, channels=CHANNELS)


def layer_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray | None = None) -> Value:
    axis = x.axis(op.attributes.get("axis", -1))
    return operators.layer_normalization(b, x, range(axis, x.rank), scale, bias, op.attributes.get("epsilon", 1e-5))


def group_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray) -> Value:
    """Before opset 21 scale and bias have one number for each group."""
    groups, epsilon = op.attributes["num_groups"], op.attributes.get("epsilon", 1e-5)
    scale, bias = (np.repeat(a, x.shape[1] // groups) if op.version < 21 else a for a in (scale, bias))
    return operators.group_normalization(b, x, groups, scale, bias, epsilon, CHANNELS)


def instance_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray) -> Value:
    return operators.group_normalization(b, x, -1, scale, bias, op.attributes.get("epsilon", 1e-5), CHANNELS)


def local_response(b: Builder, op: Operator, x: Value) -> Value:
    a = op.attributes
    norm = LocalResponseNormalization(
        a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0), average=True
    )
    return operators.local_response(b, x, norm, CHANNELS)


def lp_normalization(b: Builder, op: Operator, x: Value) -> Value:
    if op.attributes.get("p", 2) != 2:
        raise UnsupportedError("Normalization by the sum of magnitudes.", "p=2.")
    return operators.unit_length(b, x, op.attributes.get("axis", -1))


def max_pool(b: Builder, op: Operator, x: Value) -> Value:
    n = len(op.attributes["kernel_shape"])
    size, strides, dilation = pairs(op, n, "kernel_shape", "strides", "dilations")
    if dilation != (1, 1) or len(op.outputs) > 1:
        raise UnsupportedError("Maximum pooling with dilation or with indices.", "Plain windows.")
    ceil = bool(op.attributes.get("ceil_mode", 0))
    return operators.max_pool(b, x, size, strides, padding_of(op, x, size, strides), ceil=ceil, channels=CHANNELS)


def average_pool(b: Builder, op: Operator, x: Value) -> Value:
    n = len(op.attributes["kernel_shape"])
    size, strides, dilation = pairs(op, n, "kernel_shape", "strides", "dilations")
    if dilation != (1, 1):
        raise UnsupportedError("Average pooling with dilation.", "Plain windows.")
    return operators.average_pool(
        b, x, size, strides, padding_of(op, x, size, strides), ceil=bool(op.attributes.get("ceil_mode", 0)),
        counts_padding=bool(op.attributes.get("count_include_pad", 0)), channels=CHANNELS,
    )  # fmt: skip


def global_average_pool(b: Builder, op: Operator, x: Value) -> Operand:
    return operators.reduce(b, x, Mean, range(2, x.rank), keepdims=True)


def global_max_pool(b: Builder, op: Operator, x: Value) -> Operand:
    return operators.global_max_pool(b, x, CHANNELS)


def resize(
    b: Builder, op: Operator, x: Value, roi: Operand | None = None, scales: Operand | None = None,
    sizes: Operand | None = None,
) -> Value:  # fmt: skip
    """Opset 10 has no regions: its second input are the scales."""
    if op.version < 11 and op.kind == "Resize":
        scales = roi
    if op.kind == "Upsample":
        old = [1, 1, *(op.attributes.get(name, 1.0) for name in ("height_scale", "width_scale"))]
        scales = roi if roi is not None else np.array(op.attributes.get("scales", old))
    scale = None
    if sizes is not None:
        target = integers(sizes)
    else:
        factors = [float(n) for n in known(scales, "scales")]
        target = [int(np.floor(n * factor)) for n, factor in zip(x.shape, factors, strict=True)]
        scale = (factors[-2], factors[-1])
    if x.rank != 4 or len(target) != 4 or target[1] != x.shape[1]:
        raise UnsupportedError(f"{x.shape} becomes {tuple(target)}.", "Other heights and widths.")
    old = "asymmetric" if op.version < 11 else "half_pixel"
    return operators.resize(
        b, x, (target[2], target[3]), op.attributes.get("mode", "nearest"),
        coordinates=op.attributes.get("coordinate_transformation_mode", old),
        scale=scale, rounding=op.attributes.get("nearest_mode", "floor" if op.version < 11 else "round_prefer_floor"),
        channels=CHANNELS,
    )  # fmt: skip


def concat(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes.get("axis", 1))


def reshape(b: Builder, op: Operator, x: Operand, shape: Operand | None = None) -> Operand:
    wanted = list(op.attributes["shape"]) if shape is None else integers(shape)
    if not op.attributes.get("allowzero", 0):
        wanted = [x.shape[axis] if n == 0 else n for axis, n in enumerate(wanted)]
    return shapes.reshape(b, x, wanted)


def flatten(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return shapes.reshape(b, x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))


def transpose(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.transpose(b, x, op.attributes.get("perm") or range(len(x.shape))[::-1])


def squeeze(b: Builder, op: Operator, x: Operand, axes: Operand | None = None) -> Operand:
    return shapes.squeeze(b, x, op.attributes.get("axes") if axes is None else integers(axes))


def unsqueeze(b: Builder, op: Operator, x: Operand, axes: Operand | None = None) -> Operand:
    return shapes.unsqueeze(b, x, op.attributes["axes"] if axes is None else integers(axes))


def slices(
    b: Builder, op: Operator, x: Operand, starts: Operand | None = None, ends: Operand | None = None,
    axes: Operand | None = None, steps: Operand | None = None,
) -> Operand:  # fmt: skip
    begin = op.attributes["starts"] if starts is None else integers(starts)
    end = op.attributes["ends"] if ends is None else integers(ends)
    where = op.attributes.get("axes") if axes is None else integers(axes)
    step = [1] * len(begin) if steps is None else integers(steps)
    for axis, first, last, by in zip(where or range(len(begin)), begin, end, step, strict=True):
        if by == 0:
            raise UnsupportedError("A slice with step 0.")
        last = None if by < 0 and last < -x.shape[axis] else last  # in front of the first
        x = shapes.slice_axis(b, x, axis, first, last, by)
    return x


def split(b: Builder, op: Operator, x: Operand, sizes: Operand | None = None) -> tuple[Operand, ...]:
    axis = op.attributes.get("axis", 0)
    parts = op.attributes.get("split") if sizes is None else integers(sizes)
    if not parts:
        count, n = op.attributes.get("num_outputs", len(op.outputs)), x.shape[axis]
        size = -(-n // count)
        parts = [size] * (n // size) + ([n % size] if n % size else [])
    return shapes.split(b, x, axis, parts)


def gather(b: Builder, op: Operator, x: Operand, indices: Operand) -> Operand:
    return shapes.gather(b, x, indices, op.attributes.get("axis", 0))


def pad(
    b: Builder, op: Operator, x: Operand, pads: Operand | None = None, value: Operand | None = None,
    axes: Operand | None = None,
) -> Operand:  # fmt: skip
    sizes = op.attributes.get("pads", op.attributes.get("paddings")) if pads is None else integers(pads)
    number = op.attributes.get("value", 0.0) if value is None else float(known(value, "value").reshape(()))
    rank = len(x.shape)
    where = range(rank) if axes is None else [axis % rank for axis in integers(axes)]
    sides: list[Pair] = [(0, 0)] * rank
    for n, axis in enumerate(where):
        sides[axis] = (int(sizes[n]), int(sizes[n + len(where)]))
    mode = op.attributes.get("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise UnsupportedError(f"mode='{mode}'.", "constant, edge or reflect.")
    return operators.pad(b, x, sides, number, mode)


def cast(b: Builder, op: Operator, x: Operand) -> Operand:
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(op.attributes["to"])
    if isinstance(x, np.ndarray):
        return x.astype(kind)
    return operators.as_type(b, x, kind.name)


def constant(b: Builder, op: Operator) -> Operand:
    for name, kind in (("value", None), ("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if name in op.attributes:
            return np.asarray(op.attributes[name], kind)
    raise UnsupportedError("A constant that is no number.")


def constant_of_shape(b: Builder, op: Operator, shape: Operand) -> Operand:
    value = np.asarray(op.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    return filled(tuple(integers(shape)), value[0])


def shape_of(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.shape_of(x)[op.attributes.get("start", 0) : op.attributes.get("end")]


def arange(b: Builder, op: Operator, start: Operand, limit: Operand, delta: Operand) -> Operand:
    first, last, step = (known(x, "limit").item() for x in (start, limit, delta))
    check_size((int(max((last - first) // step, 0)),))
    return np.arange(first, last, step)


def expand(b: Builder, op: Operator, x: Operand, shape: Operand) -> Operand:
    return shapes.expand(b, x, integers(shape))


def dequantize(b: Builder, op: Operator, x: Operand, scale: np.ndarray, zero: np.ndarray | None = None) -> Operand:
    """Constants become numbers again; values already are."""
    if isinstance(x, Value):
        return x
    axis = op.attributes.get("axis", 1) % max(x.ndim, 1)
    shape = [-1 if n == axis else 1 for n in range(x.ndim)] if scale.size > 1 else []
    offset = 0 if zero is None else zero.astype(np.int64).reshape(shape)
    return ((x.astype(np.int64) - offset) * scale.reshape(shape)).astype(np.float32)


def quantize(b: Builder, op: Operator, x: Operand, scale: np.ndarray, zero: np.ndarray | None = None) -> Operand:
    if isinstance(x, np.ndarray):
        raise UnsupportedError("A constant is quantized.", "Constants that are integers in the file.")
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    quantization = Quantization(scale.reshape(-1), zero.reshape(-1), dtype=str(zero.dtype))
    return b.saturated(x, op.outputs[0], quantization)


def depth_to_space(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["blocksize"]
    if op.attributes.get("mode", "DCR") == "DCR":
        y = shapes.transpose(b, shapes.reshape(b, x, (n, s, s, c // s**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = shapes.transpose(b, shapes.reshape(b, x, (n, c // s**2, s, s, h, w)), (0, 1, 4, 2, 5, 3))
    return shapes.reshape(b, y, (n, c // s**2, h * s, w * s))


def space_to_depth(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["blocksize"]
    y = shapes.transpose(b, shapes.reshape(b, x, (n, c, h // s, s, w // s, s)), (0, 3, 5, 1, 2, 4))
    return shapes.reshape(b, y, (n, c * s * s, h // s, w // s))


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, ReLU())


def clip(b: Builder, op: Operator, x: Operand, low: Operand | None = None, high: Operand | None = None) -> Operand:
    smallest = op.attributes.get("min") if low is None else float(known(low, "minimum").reshape(()))
    largest = op.attributes.get("max") if high is None else float(known(high, "maximum").reshape(()))
    ends = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))  # no limits
    return operators.clip(b, x, *(None if limit in ends else limit for limit in (smallest, largest)))


def hard_sigmoid(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.hard_sigmoid(b, x, op.attributes.get("alpha", 0.2), op.attributes.get("beta", 0.5))


def swish(b: Builder, op: Operator, x: Operand) -> Operand:
    if op.attributes.get("alpha", 1.0) != 1:
        raise UnsupportedError("Swish with another alpha than 1.", "x * sigmoid(x).")
    return operators.activation(b, x, "SiLU")


def prelu(b: Builder, op: Operator, x: Value, slope: np.ndarray) -> Value:
    return operators.prelu(b, x, known(slope, "slope"))


def _softmax(kind: Softmax | LogSoftmax):
    """Before opset 13 it is over all axes from `axis` on."""

    def handler(b: Builder, op: Operator, x: Operand) -> Operand:
        if op.version >= 13:
            return operators.softmax(b, x, op.attributes.get("axis", -1), kind)
        axis, shape = op.attributes.get("axis", 1) % len(x.shape), x.shape
        flat = shapes.reshape(b, x, (*shape[:axis], -1)) if axis < len(shape) - 1 else x
        return shapes.reshape(b, operators.softmax(b, flat, -1, kind), shape)

    return handler


def selu(b: Builder, op: Operator, x: Operand) -> Operand:
    given = [op.attributes.get(name, default) for name, default in (("alpha", 1.6732632), ("gamma", 1.0507010))]
    if not np.allclose(given, (1.6732632, 1.0507010), rtol=1e-4):
        raise UnsupportedError(f"Selu with alpha={given[0]}, gamma={given[1]}.", "The default numbers.")
    return operators.activation(b, x, "SELU")


def _reduction(kind: type, before=None, after=None):
    """A sum, mean or maximum; `before` and `after`: functions of what is reduced, and of the result."""

    def reduce(b: Builder, op: Operator, x: Operand, axes: Operand | None = None) -> Operand:
        x = before(b, x) if before else x
        y = plain(b, op, x, axes)
        return after(b, y) if after else y

    def plain(b: Builder, op: Operator, x: Operand, axes: Operand | None) -> Operand:
        chosen = op.attributes.get("axes") if axes is None else integers(axes)
        if not chosen and op.attributes.get("noop_with_empty_axes", 0):
            return x
        if not chosen and isinstance(x, Value) and x.batch_axis is not None:
            chosen = range(len(x.shape)) if x.batch > 1 else None
        return operators.reduce(b, x, kind, chosen or None, keepdims=bool(op.attributes.get("keepdims", 1)))

    return reduce


def _absolute(b: Builder, x: Operand) -> Operand:
    return operators.activation(b, x, "Abs")


def _squared(b: Builder, x: Operand) -> Operand:
    return operators.power(b, x, 2.0)


def _negative(b: Builder, x: Operand) -> Operand:
    return operators.scale(b, x, -1.0)


def dropout(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


def identity(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


def variadic(function):
    """Operators of any number of inputs, pairwise."""

    def handler(b: Builder, op: Operator, first: Operand, *others: Operand) -> Operand:
        for other in others:
            first = function(b, first, other)
        return first

    return handler


def _binary(function):
    """Before opset 7 `axis` says which axis of x is the first of y."""

    def handler(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
        if op.version < 7 and op.attributes.get("broadcast") and "axis" in op.attributes:
            missing = len(x.shape) - op.attributes["axis"] % len(x.shape) - len(y.shape)
            y = shapes.reshape(b, y, (*y.shape, *(1,) * missing))
        return function(b, x, y)

    return handler


def image_scaler(b: Builder, op: Operator, x: Operand) -> Operand:
    """Before opset 10: x * scale, and a bias for each channel."""
    bias = np.asarray(op.attributes.get("bias") or [0.0], np.float32).reshape(-1, 1, 1)
    return operators.add(b, operators.scale(b, x, op.attributes.get("scale", 1.0)), bias)


def _unary(kind: str, *names: tuple[str, str, float]):
    """An activation; `names`: (attribute, argument of the op, default)."""

    def handler(b: Builder, op: Operator, x: Operand) -> Operand:
        return operators.activation(
            b, x, kind, **{argument: op.attributes.get(attribute, default) for attribute, argument, default in names}
        )

    return handler


def _folded(function):
    """Operators that files apply to constants alone."""

    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        if any(isinstance(x, Value) for x in inputs):
            raise UnsupportedError("It is applied to a value.", "Constants.")
        return np.asarray(function(*inputs))

    return handler


def _comparison(kind: str):
    return _binary(lambda b, x, y: operators.compare(b, kind, x, y))


def gelu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, "GELU", approximate=op.attributes.get("approximate", "none") == "tanh")


def power(b: Builder, op: Operator, x: Operand, exponent: Operand) -> Operand:
    return operators.power(b, x, float(known(exponent, "exponent").reshape(())))


HANDLERS = {
    "Abs": _unary("Abs"),
    "Add": _binary(operators.add),
    "And": _binary(operators.multiply),
    "AveragePool": average_pool,
    "BatchNormalization": batchnorm,
    "Cast": cast,
    "Ceil": _folded(np.ceil),
    "Clip": clip,
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DepthToSpace": depth_to_space,
    "DequantizeLinear": dequantize,
    "Div": _binary(operators.divide),
    "Dropout": dropout,
    "Elu": _unary("ELU", ("alpha", "alpha", 1.0)),
    "Equal": _comparison("equal"),
    "Exp": _unary("Exp"),
    "Expand": expand,
    "Flatten": flatten,
    "Floor": _folded(np.floor),
    "Gather": gather,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "GroupNormalization": group_normalization,
    "Greater": _comparison("greater"),
    "GreaterOrEqual": _comparison("greater_equal"),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _unary("HardSwish"),
    "Identity": identity,
    "ImageScaler": image_scaler,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LRN": local_response,
    "Less": _comparison("less"),
    "LessOrEqual": _comparison("less_equal"),
    "LeakyRelu": _unary("LeakyReLU", ("alpha", "negative_slope", 0.01)),
    "Log": _unary("Log"),
    "LogSoftmax": _softmax(LogSoftmax()),
    "LpNormalization": lp_normalization,
    "MatMul": matmul,
    "Max": variadic(lambda b, x, y: operators.extreme(b, x, y, True)),
    "MaxPool": max_pool,
    "Min": variadic(lambda b, x, y: operators.extreme(b, x, y, False)),
    "Mish": _unary("Mish"),
    "Mul": _binary(operators.multiply),
    "Not": lambda b, op, x: operators.compare(b, "equal", x, np.zeros((), np.float32)),
    "Neg": lambda b, op, x: operators.scale(b, x, -1.0),
    "Or": _binary(lambda b, x, y: operators.extreme(b, x, y, True)),
    "PRelu": prelu,
    "Pad": pad,
    "Pow": power,
    "QuantizeLinear": quantize,
    "Range": arange,
    "Reciprocal": _unary("Reciprocal"),
    "ReduceL1": _reduction(Sum, _absolute),
    "ReduceL2": _reduction(Sum, _squared, lambda b, x: operators.power(b, x, 0.5)),
    "ReduceMax": _reduction(Max),
    "ReduceMean": _reduction(Mean),
    "ReduceMin": _reduction(Max, _negative, _negative),
    "ReduceSum": _reduction(Sum),
    "ReduceSumSquare": _reduction(Sum, _squared),
    "Relu": relu,
    "Reshape": reshape,
    "Resize": resize,
    "Selu": selu,
    "Shape": shape_of,
    "Sigmoid": _unary("Sigmoid"),
    "Slice": slices,
    "Softmax": _softmax(Softmax()),
    "Softplus": _unary("Softplus"),
    "Softsign": _unary("Softsign"),
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Sqrt": _unary("Sqrt"),
    "Squeeze": squeeze,
    "Sub": _binary(operators.subtract),
    "Sum": variadic(operators.add),
    "Swish": swish,
    "Tanh": _unary("Tanh"),
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Upsample": resize,
    "Where": lambda b, op, condition, x, y: operators.where(b, condition, x, y),
}  # fmt: skip

NEAREST = {
    "GRU": "Convolutions over time (DS-CNN, BC-ResNet).",
    "LSTM": "Convolutions over time (DS-CNN, BC-ResNet).",
    "If": "An export with fixed shapes.",
    "Loop": "An export with fixed shapes.",
    "Scan": "An export with fixed shapes.",
    "NonMaxSuppression": "Cut the model before it: outputs=(...).",
    "TopK": "Cut the model before it: outputs=(...).",
    "ArgMax": "Cut the model before it: outputs=(...).",
    "QLinearConv": "The QDQ form: QuantizeLinear and DequantizeLinear around Conv.",
}


def fuse_gelu(graph: ForeignGraph) -> ForeignGraph:
    """Return the graph with x * 0.5 * (1 + erf(x / sqrt(2))), multiplied in any order, as Gelu."""
    if all(operator.kind != "Erf" for operator in graph.operators):
        return graph
    pattern = _Pattern(graph)
    found = [gelu for operator in graph.operators if operator.kind == "Erf" and (gelu := pattern.gelu(operator))]
    replaced = {gelu.outputs[0]: gelu for gelu, _ in found}
    gone = {name for _, inner in found for name in inner}
    operators = [
        replaced.get(operator.outputs[0], operator)
        for operator in graph.operators
        if operator.outputs[:1] and operator.outputs[0] not in gone
    ]
    return replace(graph, operators=tuple(operators))


class _Pattern:
    """Operators by the tensors that they make and read."""

    def __init__(self, graph: ForeignGraph) -> None:
        self.graph = graph
        self.makers = {name: operator for operator in graph.operators for name in operator.outputs}
        self.reads = Counter(name for operator in graph.operators for name in operator.inputs) + Counter(graph.outputs)
        self.readers = {name: operator for operator in graph.operators for name in operator.inputs}

    def gelu(self, erf: Operator) -> tuple[Operator, tuple[str, ...]] | None:
        """The operator that the pattern around `erf` is, and the tensors that are gone; None if it isn't one."""
        x = self._scaled(erf.inputs[0], sqrt(0.5))
        plus = self._only_reader(erf.outputs[0])
        if x is None or plus is None or plus.kind != "Add" or self._number(plus) != 1:
            return None
        inner, product, half = [erf.outputs[0]], plus.outputs[0], False
        remaining = {x}
        while remaining or not half:
            times = self._only_reader(product)
            if times is None or times.kind not in ("Mul", "Div"):
                return None
            inner.append(product)
            number = self._number(times)
            other = next((name for name in times.inputs if name != product), product)
            if number is not None and not half and isclose(number, 0.5 if times.kind == "Mul" else 2):
                half = True
            elif times.kind == "Mul" and other in remaining:
                remaining.clear()
            elif times.kind == "Mul" and remaining and not half and self._scaled(other, 0.5) in remaining:
                remaining.clear()
                half = True
            else:
                return None
            product = times.outputs[0]
        return Operator("Gelu", erf.name, (x,), (product,), {}, erf.version), tuple(inner)

    def _scaled(self, tensor: str, factor: float) -> str | None:
        """The tensor that `tensor` is `factor` times of, None if there is none."""
        maker = self.makers.get(tensor)
        number = None if maker is None else self._number(maker)
        if maker is None or number is None or maker.kind not in ("Mul", "Div"):
            return None
        is_it = isclose(number, factor if maker.kind == "Mul" else 1 / factor, rel_tol=1e-4)
        return next((name for name in maker.inputs if self._constant(name) is None), None) if is_it else None

    def _only_reader(self, tensor: str) -> Operator | None:
        return self.readers[tensor] if self.reads[tensor] == 1 and tensor in self.readers else None

    def _number(self, operator: Operator) -> float | None:
        """The constant that it adds or multiplies by, or divides by."""
        names = operator.inputs[1:] if operator.kind == "Div" else operator.inputs
        numbers = [number for name in names if (number := self._constant(name)) is not None]
        return numbers[0] if len(numbers) == 1 else None

    def _constant(self, name: str) -> float | None:
        array = self.graph.constants.get(name)
        maker = self.makers.get(name)
        if array is None and maker is not None and maker.kind == "Constant":
            array = maker.attributes.get("value", maker.attributes.get("value_float"))
        found = None if array is None else np.asarray(array)
        return float(found.reshape(())) if found is not None and found.size == 1 else None


LARGEST_FILE = 2 << 30  # of the protocol buffers themselves; weights beyond that lie in files of their own
DOMAINS = ("", "ai.onnx")
POINTWISE = {"Add", "Cast", "Div", "Identity", "Mul", "Sub"}  # that may stand before, such as a scale of pixels
CHANNELS_FIRST = {
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool",
}  # fmt: skip
PASSING = POINTWISE | {
    "Clip", "Concat", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Max", "Min",
    "Mish", "Pad", "PRelu", "Relu", "Resize", "Selu", "Sigmoid", "Slice", "Softmax", "Softplus", "Softsign", "Sum",
    "Tanh",
}  # fmt: skip
TO_IMAGES = [0, 3, 1, 2]  # from channels last to channels first


def read_graph(path: str | Path) -> ForeignGraph:
    """Read the graph and the weights of a file; weights in files of their own are read from its folder.

    Raises FormatError if the file is damaged, or if `onnx` is missing.
    """
    path = Path(path)
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise FormatError(f"{path} is an ONNX file. Reading it needs: pip install 'edgelearn[formats]'.") from None
    model = onnx.ModelProto()
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FormatError(f"{path} has more than {LARGEST_FILE:,} bytes: store its weights as external data.")
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path} can't be read ({error.strerror}). Give the path of an ONNX file.") from None
    except (DecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"{path} is not an ONNX file, or is damaged ({error!s:.100}). Fetch it again.") from None
    try:
        return fuse_gelu(graph_of(model, path))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is damaged ({type(error).__name__}: {error!s:.200}). Fetch it again.") from None


def graph_of(model: Any, path: Path = Path("model.onnx")) -> ForeignGraph:
    """The graph of an `onnx.ModelProto`; `path`: its file, for external data and errors."""
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    graph = model.graph
    if not graph.node:
        raise FormatError(f"{path} holds no operators: it is not an ONNX model, or is damaged.")
    if graph.sparse_initializer:
        raise FormatError(f"{path} has sparse weights. Save it with dense ones.")
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = next((versions[domain] for domain in DOMAINS if domain in versions), 1)
    constants = {tensor.name: _array(tensor, path) for tensor in graph.initializer}
    operators = tuple(_operator(node, n, version, versions, path) for n, node in enumerate(graph.node))
    texts = {entry.key: entry.value for entry in model.metadata_props}
    preprocessing, names = _json(texts, "preprocessing", dict), _json(texts, "class_names", list)
    given = [value for value in graph.input if value.name not in constants]
    read = {name for operator in operators for name in operator.inputs} | {value.name for value in graph.output}
    unread = [value.name for value in given if value.name not in read]  # constants that tf2onnx folded, for example
    if unread and len(unread) < len(given):
        texts["inputs that nothing reads"] = ", ".join(unread)
        given = [value for value in given if value.name in read]
    inputs = tuple(_input(value, operators) for value in given)
    return ForeignGraph(
        "ONNX", graph.name or path.stem, inputs, tuple(value.name for value in graph.output), operators, constants,
        {value.name: _info(value) for value in graph.value_info} | _outputs(graph.output, operators, inputs),
        preprocessing or {}, tuple(map(str, names or ())),
        {key: text for key, text in texts.items() if key not in ("preprocessing", "class_names")},
    )  # fmt: skip


def _operator(node: Any, number: int, version: int, versions: dict[str, int], path: Path) -> Operator:
    kind = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
    attributes = {a.name: _attribute(a, path) for a in node.attribute}
    parameter = node.input[1] if len(node.input) > 1 else ""
    name = node.name.strip("/") or f"{node.op_type}_{number}"
    if parameter.endswith((".weight", ".kernel")):  # PyTorch's own name of the module
        name = parameter.rpartition(".")[0]
    version = version if node.domain in DOMAINS else versions.get(node.domain, 1)
    return Operator(kind, name, tuple(node.input), tuple(node.output), attributes, version)


def _attribute(attribute: Any, path: Path) -> Any:
    """The value as Python has it; "subgraph" for graphs, which no handler reads."""
    import onnx

    kind = attribute.type
    if kind == onnx.AttributeProto.TENSOR:
        return _array(attribute.t, path)
    if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return "subgraph"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple) or hasattr(value, "extend"):
        return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    return value


def _array(tensor: Any, path: Path) -> np.ndarray:
    """A tensor of the file, whose size is checked first."""
    import onnx

    shape = tuple(tensor.dims)
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if any(n < 0 for n in shape):
        raise FormatError(f"{path}: '{tensor.name}' has the shape {shape}. The file is damaged.")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, shape, kind, path)
    stored = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    count = max(len(tensor.raw_data), *map(len, stored), len(tensor.string_data))
    if prod(shape) > 2 * count:  # two 4-bit numbers in a byte are the densest
        raise FormatError(f"{path}: '{tensor.name}' of shape {shape} has only {count} bytes. The file is damaged.")
    return np.asarray(onnx.numpy_helper.to_array(tensor))


def _external(tensor: Any, shape: tuple[int, ...], kind: np.dtype, path: Path) -> np.ndarray:
    """A tensor in another file of the same folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    folder = path.parent.resolve()
    file = (folder / entries.get("location", "")).resolve()
    if not file.is_relative_to(folder) or not file.is_file():
        raise FormatError(
            f"{path}: '{tensor.name}' lies in '{entries.get('location', '')!s:.200}', which isn't in its folder."
        )
    offset, nbytes = int(entries.get("offset", 0)), prod(shape) * kind.itemsize
    if offset < 0 or int(entries.get("length", nbytes)) != nbytes or offset + nbytes > file.stat().st_size:
        raise FormatError(f"{path}: '{tensor.name}' needs {nbytes:,} bytes of {file.name} that aren't there.")
    return np.fromfile(file, kind.newbyteorder("<"), prod(shape), offset=offset).reshape(shape)


def _info(value: Any) -> TensorInfo:
    import onnx

    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else "float32"
    return TensorInfo(value.name, tuple(dims) if kind.HasField("shape") else None, dtype)


def _input(value: Any, operators: tuple[Operator, ...]) -> TensorInfo:
    """An input; an image has channels first, unless all that is done with it is to put them there, and so has a
    sequence that convolutions and their like read."""
    info = _info(value)
    if info.shape is not None and len(info.shape) == 3:
        first = takes_channels_first(info.name, operators, CHANNELS_FIRST, PASSING)
        return replace(info, layout="NCHW" if first else "")
    if info.shape is None or len(info.shape) != 4:
        return info
    names, readers = {value.name}, []
    for operator in operators:  # in the order in which they run
        if names.isdisjoint(operator.inputs):
            continue
        if operator.kind in POINTWISE:
            names.update(operator.outputs)
        else:
            readers.append(operator)
    last = readers and all(o.kind == "Transpose" and list(o.attributes.get("perm", ())) == TO_IMAGES for o in readers)
    return TensorInfo(info.name, info.shape, info.dtype, "NHWC" if last else "NCHW")


def _outputs(
    values: Iterable[Any], operators: tuple[Operator, ...], inputs: tuple[TensorInfo, ...]
) -> dict[str, TensorInfo]:  # fmt: skip
    """The outputs by name, which know whether they have channels first."""
    begins = {info.name for info in inputs if info.layout == "NCHW"}
    first = {value.name for value in values
             if gives_channels_first(value.name, operators, CHANNELS_FIRST, PASSING, begins)}  # fmt: skip
    return {value.name: replace(_info(value), layout="NCHW" if value.name in first else "") for value in values}


def _json(texts: dict[str, str], key: str, kind: type) -> Any:
    """An entry that edgelearn writes, None if it isn't there or is another program's."""
    try:
        found = json.loads(texts.get(key, "null"))
    except (RecursionError, ValueError):
        return None
    return found if isinstance(found, kind) else None


register(graph_format("ONNX", (".onnx",), b"", GraphReader(read_graph, HANDLERS, NEAREST)))
