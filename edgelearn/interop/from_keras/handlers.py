"""Keras layers: one function each. A function gets what the layer reads, then its arrays. https://keras.io/api/layers"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Dropout, Max, Mean, SpatialDropout2D

from ..importing import Builder, Operator, Value, arithmetic, linear, shapes, windows
from ..importing.tensorflow import Operand, computed, depthwise
from . import functions
from .activations import activate

Layer = Callable[..., Operand]


def layer(function: Layer) -> Layer:
    """A handler that ends in the layer's `activation`."""

    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        return activate(b, op, function(b, op, *inputs), op.attributes.get("activation"))

    return handler


def weighted(function: Layer) -> Layer:
    """A handler of a layer with weights, which no model may share."""

    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        if op.attributes.get("called again"):
            raise UnsupportedError("It is called more than once, and its weights are shared.", "A layer for each call.")
        if not op.attributes["arrays"]:
            raise FormatError(f"{op.kind} '{op.name}' has no weights in the file. Give a file with all weights.")
        return activate(b, op, function(b, op, *inputs), op.attributes.get("activation"))

    return handler


def _channels(op: Operator) -> int:
    return 1 if op.attributes.get("data_format") == "channels_first" else -1


def _pair(op: Operator, name: str, default: int = 1) -> tuple[int, int]:
    """A setting as (height, width); the layers of sequences have the width alone."""
    value = op.attributes.get(name)
    numbers = [default] if value is None else [value] if isinstance(value, int) else list(value)
    if op.kind.endswith("1D"):
        numbers = [1, *numbers]
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or any(not isinstance(n, int) or n < 0 for n in numbers):
        raise FormatError(f"{op.kind} '{op.name}' has {name}={value!r:.60}. The file is damaged.")
    return numbers[0], numbers[1]


def _padding(op: Operator, kernel: int, dilation: int = 1) -> Any:
    padding = op.attributes.get("padding", "valid")
    if padding == "causal":
        return (0, 0), (dilation * (kernel - 1), 0)
    return padding


def _as_image(kernel: np.ndarray) -> np.ndarray:
    """The kernel of a layer of sequences as one of images of height 1."""
    return kernel[None] if kernel.ndim == 3 else kernel


def conv(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    x, kernel, dilation = computed(x), _as_image(kernel), _pair(op, "dilation_rate")
    groups = op.attributes.get("groups", 1)
    return linear.conv(
        b, x, kernel, bias, strides=_pair(op, "strides"), padding=_padding(op, kernel.shape[1], dilation[1]),
        dilation=dilation, groups=groups, channels=_channels(op),
    )  # fmt: skip


def depthwise_conv(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    kernel, dilation = _as_image(kernel), _pair(op, "dilation_rate")
    padding = _padding(op, kernel.shape[1], dilation[1])
    return depthwise(b, computed(x), kernel, bias, _pair(op, "strides"), padding, dilation, _channels(op))


def separable_conv(
    b: Builder, op: Operator, x: Operand, depth: np.ndarray, point: np.ndarray, bias: np.ndarray | None = None
) -> Value:
    with b.part("depthwise"):
        y = depthwise_conv(b, op, x, depth)
    return linear.conv(b, y, _as_image(point), bias, channels=_channels(op))


def transposed_conv(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    """Keras's kernel is (height, width, filters, channels)."""
    extra = None if op.attributes.get("output_padding") is None else _pair(op, "output_padding")
    return linear.transposed_conv(
        b, computed(x), _as_image(kernel).transpose(0, 1, 3, 2), bias, strides=_pair(op, "strides"),
        padding=op.attributes.get("padding", "valid"), output_padding=extra, dilation=_pair(op, "dilation_rate"),
        channels=_channels(op),
    )  # fmt: skip


def dense(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    return linear.dense(b, computed(x), kernel, bias)


def embedding(b: Builder, op: Operator, x: Operand, table: np.ndarray) -> Operand:
    if op.attributes.get("mask_zero"):
        raise UnsupportedError("mask_zero=True.", "mask_zero=False.")
    return shapes.gather(b, table, computed(x), 0)


def batchnorm(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Value:
    rest = list(arrays)
    gamma = rest.pop(0) if op.attributes.get("scale", True) else None
    beta = rest.pop(0) if op.attributes.get("center", True) else None
    mean, variance = rest
    axis = op.attributes.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) else axis
    settings = {name: op.attributes.get(name, default) for name, default in (("epsilon", 1e-3), ("momentum", 0.99))}
    return linear.batchnorm(b, computed(x), gamma, beta, mean, variance, channels=axis, **settings)


def groupnorm(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Value:
    rest = list(arrays)
    gamma = rest.pop(0) if op.attributes.get("scale", True) else None
    beta = rest.pop(0) if op.attributes.get("center", True) else None
    groups, epsilon = op.attributes.get("groups", 32), op.attributes.get("epsilon", 1e-3)
    return linear.group_normalization(b, computed(x), groups, gamma, beta, epsilon, op.attributes.get("axis", -1))


def layernorm(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Value:
    rest, x = list(arrays), computed(x)
    gamma = rest.pop(0) if op.attributes.get("scale", True) else None
    beta = rest.pop(0) if op.attributes.get("center", True) else None
    axis = op.attributes.get("axis", -1)
    axes = axis if isinstance(axis, list) else [axis]
    return linear.layer_normalization(b, x, [x.axis(n) for n in axes], gamma, beta, op.attributes.get("epsilon", 1e-3))


def layer_scale(b: Builder, op: Operator, x: Operand, scale: np.ndarray) -> Operand:
    """A factor for each channel, of ConvNeXt."""
    return arithmetic.multiply(b, x, scale)


def normalization(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Operand:
    """(x - mean) / sqrt(variance) with statistics of the training data."""
    mean, variance = op.attributes.get("mean"), op.attributes.get("variance")
    if mean is None:
        if len(arrays) < 2:
            raise FormatError(f"{op.kind} '{op.name}' has no mean and variance. Adapt the layer, and save it again.")
        mean, variance = arrays[:2]
    axis = op.attributes.get("axis", -1)
    if axis not in (-1, [-1], None, []) and axis not in (len(x.shape) - 1, [len(x.shape) - 1]):
        raise UnsupportedError(f"Normalization over axis {axis}.", "The last axis.")
    scale = np.maximum(np.sqrt(np.asarray(variance, np.float64)), 1e-7).reshape(-1)
    shift = np.asarray(mean, np.float64).reshape(-1)
    if op.attributes.get("invert"):
        return arithmetic.add(b, arithmetic.multiply(b, x, scale), shift)
    return arithmetic.multiply(b, arithmetic.subtract(b, x, shift), 1 / scale)


def unit_normalization(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", -1)
    axes = axis if isinstance(axis, list) else [axis]
    if len(axes) != 1:
        raise UnsupportedError(f"Unit length over the axes {axes!r:.60}.", "One axis.")
    return arithmetic.unit_length(b, computed(x), axes[0])


def rescaling(b: Builder, op: Operator, x: Operand) -> Operand:
    scale, offset = (
        np.asarray(op.attributes.get(name, d), np.float64) for name, d in (("scale", 1.0), ("offset", 0.0))
    )
    if scale.size == offset.size == 1:
        return arithmetic.scale(b, x, float(scale.reshape(())), float(offset.reshape(())))
    return arithmetic.add(b, arithmetic.multiply(b, x, scale), offset)


def prelu(b: Builder, op: Operator, x: Operand, slope: np.ndarray) -> Value:
    return arithmetic.prelu(b, computed(x), slope)


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    slope, threshold = op.attributes.get("negative_slope") or 0.0, op.attributes.get("threshold") or 0.0
    highest = op.attributes.get("max_value")
    if threshold or (slope and highest is not None):
        raise UnsupportedError(f"ReLU with threshold={threshold}, negative_slope={slope}.", "ReLU(max_value).")
    if slope:
        return arithmetic.activation(b, x, "LeakyReLU", negative_slope=slope)
    return arithmetic.clip(b, x, 0, highest)


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    slope = op.attributes.get("negative_slope", op.attributes.get("alpha", 0.3))
    return arithmetic.activation(b, x, "LeakyReLU", negative_slope=float(slope))


def elu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "ELU", alpha=float(op.attributes.get("alpha", 1.0)))


def softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", -1)
    if not isinstance(axis, int):
        raise UnsupportedError(f"Softmax over the axes {axis!r:.60}.", "One axis.")
    return arithmetic.softmax(b, x, axis)


def activation(b: Builder, op: Operator, x: Operand) -> Operand:
    return x  # `layer` applies it


def dropout(b: Builder, op: Operator, x: Operand) -> Operand:
    rate = op.attributes["rate"]
    return b.apply(Dropout(rate), computed(x)) if rate else x


def spatial_dropout(b: Builder, op: Operator, x: Operand) -> Operand:
    x, rate = computed(x), op.attributes["rate"]
    if not rate:
        return x
    return b.like(x, b.add(SpatialDropout2D(rate), b.image(x, _channels(op))), _channels(op))


def flatten(b: Builder, op: Operator, x: Operand) -> Operand:
    if _channels(op) == 1 and len(x.shape) == 4:
        x = shapes.transpose(b, x, (0, 2, 3, 1))
    return shapes.reshape(b, x, (x.shape[0], -1))


def reshape(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.reshape(b, x, (x.shape[0], *op.attributes["target_shape"]))


def permute(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.transpose(b, x, (0, *op.attributes["dims"]))


def _window(op: Operator) -> tuple[Any, ...]:
    size = _pair(op, "pool_size", 2)
    strides = size if op.attributes.get("strides") is None else _pair(op, "strides")
    return size, strides, op.attributes.get("padding", "valid")


def max_pool(b: Builder, op: Operator, x: Operand) -> Value:
    return windows.max_pool(b, computed(x), *_window(op), channels=_channels(op))


def average_pool(b: Builder, op: Operator, x: Operand) -> Value:
    return windows.average_pool(b, computed(x), *_window(op), channels=_channels(op))


def _global(kind: type) -> Layer:
    def pool(b: Builder, op: Operator, x: Operand) -> Operand:
        x = computed(x)
        axes = [axis for axis in range(x.rank) if axis not in (0, x.axis(_channels(op)))]
        return windows.reduce(b, x, kind, axes, keepdims=bool(op.attributes.get("keepdims", False)))

    return pool


def zero_padding(b: Builder, op: Operator, x: Operand) -> Operand:
    return windows.pad(b, x, _sides(op, x, op.attributes["padding"]))


def cropping(b: Builder, op: Operator, x: Operand) -> Operand:
    sides = _sides(op, x, op.attributes["cropping"])
    for axis, (before, after) in enumerate(sides):
        x = shapes.slice_axis(b, x, axis, before, x.shape[axis] - after)
    return x


def _sides(op: Operator, x: Operand, value: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis, of height and width."""
    rank = len(x.shape)
    if isinstance(value, int):
        value = [value] * (rank - 2)
    if rank == 3 and len(value) == 2 and isinstance(value[0], int):
        value = [value]
    pairs = [(n, n) if isinstance(n, int) else (int(n[0]), int(n[1])) for n in value]
    whole = (0, 0)
    return [whole, whole, *pairs] if _channels(op) == 1 else [whole, *pairs, whole]


def upsampling(b: Builder, op: Operator, x: Operand) -> Value:
    x, factors = computed(x), _pair(op, "size", 2)
    first = 2 if _channels(op) == 1 else 1
    height, width = (n * factor for n, factor in zip(x.shape[first : first + 2], factors, strict=True))
    mode = op.attributes.get("interpolation", "nearest")
    return windows.resize(b, x, (height, width), mode, channels=_channels(op))


def resizing(b: Builder, op: Operator, x: Operand) -> Value:
    if op.attributes.get("crop_to_aspect_ratio") or op.attributes.get("pad_to_aspect_ratio"):
        raise UnsupportedError("Resizing that keeps the aspect ratio.", "Resizing to a height and a width.")
    size = op.attributes["height"], op.attributes["width"]
    mode = op.attributes.get("interpolation", "bilinear")
    return windows.resize(b, computed(x), size, mode, channels=_channels(op))


def _merge(function: Callable[..., Operand]) -> Layer:
    def merge(b: Builder, op: Operator, first: Operand, *others: Operand) -> Operand:
        for other in others:
            first = function(b, first, other)
        return first

    return merge


def average(b: Builder, op: Operator, *values: Operand) -> Operand:
    total = _merge(arithmetic.add)(b, op, *values)
    return arithmetic.scale(b, total, 1 / len(values))  # type: ignore[arg-type]


def concatenate(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes.get("axis", -1))


def identity(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


HANDLERS: dict[str, Callable[..., Any]] = {
    "Activation": layer(activation),
    "Add": _merge(arithmetic.add),
    "Average": average,
    "AveragePooling1D": average_pool,
    "AveragePooling2D": average_pool,
    "BatchNormalization": weighted(batchnorm),
    "BatchNormalizationV1": weighted(batchnorm),
    "Concatenate": concatenate,
    "Conv1D": weighted(conv),
    "Conv2D": weighted(conv),
    "Conv2DTranspose": weighted(transposed_conv),
    "Cropping1D": cropping,
    "Cropping2D": cropping,
    "Dense": weighted(dense),
    "DepthwiseConv1D": weighted(depthwise_conv),
    "DepthwiseConv2D": weighted(depthwise_conv),
    "Dropout": dropout,
    "ELU": elu,
    "Embedding": weighted(embedding),
    "Flatten": flatten,
    "GlobalAveragePooling1D": _global(Mean),
    "GlobalAveragePooling2D": _global(Mean),
    "GlobalMaxPooling1D": _global(Max),
    "GlobalMaxPooling2D": _global(Max),
    "Identity": identity,
    "GroupNormalization": weighted(groupnorm),
    "LayerNormalization": weighted(layernorm),
    "LayerScale": weighted(layer_scale),
    "LeakyReLU": leaky_relu,
    "MaxPooling1D": max_pool,
    "MaxPooling2D": max_pool,
    "Maximum": _merge(lambda b, x, y: arithmetic.extreme(b, x, y, True)),
    "Minimum": _merge(lambda b, x, y: arithmetic.extreme(b, x, y, False)),
    "Multiply": _merge(arithmetic.multiply),
    "Normalization": normalization,
    "PReLU": weighted(prelu),
    "Permute": permute,
    "ReLU": relu,
    "Rescaling": rescaling,
    "Reshape": reshape,
    "Resizing": resizing,
    "SeparableConv1D": weighted(separable_conv),
    "SeparableConv2D": weighted(separable_conv),
    "Softmax": softmax,
    "SpatialDropout1D": spatial_dropout,
    "SpatialDropout2D": spatial_dropout,
    "Subtract": _merge(arithmetic.subtract),
    "UnitNormalization": unit_normalization,
    "UpSampling2D": upsampling,
    "ZeroPadding1D": zero_padding,
    "ZeroPadding2D": zero_padding,
    "training only": identity,
    **functions.HANDLERS,
}

_CODE = "layers of Keras, or an export to TFLite or ONNX: Python code is not in the file, or not run"
NEAREST = {
    "Lambda": _CODE,
    "custom layer": _CODE,
    "Bidirectional": "convolutions over time (Conv1D)",
    "GRU": "convolutions over time (Conv1D)",
    "LSTM": "convolutions over time (Conv1D)",
    "MultiHeadAttention": "squeeze-and-excite (GlobalAveragePooling2D, Dense, Multiply)",
    "SimpleRNN": "convolutions over time (Conv1D)",
    "TimeDistributed": "the layer itself: Dense reads the last axis",
}
