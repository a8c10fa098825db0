"""Whole Keras models become trainable networks: .keras archives of Keras 3, and .h5 files of Keras 2 and 3.

A handler of a layer gets what the layer reads, then its arrays. https://keras.io/api/layers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.graph import Network
from edgelearn.ops import Dropout, Max, Mean, ReLU, SpatialDropout2D, Sum

from . import keras_h5, operators, shapes
from . import keras_structure as configuration
from .builder import Builder, Value
from .canonical import ForeignGraph, Operator, TensorInfo
from .foreign import ArrayFile, open_arrays
from .formats import Format, GraphReader, graph_format, register, weights_of_a_network
from .keras_h5 import list_layers, snake_case
from .keras_structure import Call, Slot, Structure
from .safetensors import ModelFile
from .tensorflow import Operand, computed, depthwise

PLAIN = {
    "elu": "ELU", "exponential": "Exp", "gelu": "GELU", "hard_silu": "HardSwish", "hard_swish": "HardSwish",
    "mish": "Mish", "selu": "SELU", "sigmoid": "Sigmoid", "silu": "SiLU", "softplus": "Softplus",
    "softsign": "Softsign", "swish": "SiLU", "tanh": "Tanh",
}  # fmt: skip


def name_of(setting: Any) -> tuple[str, dict[str, Any]]:
    """Name and settings of an activation: a text, or the record of a function or a layer."""
    if setting is None:
        return "linear", {}
    if isinstance(setting, str):
        return setting, {}
    config = setting.get("config") if isinstance(setting, dict) else None
    if isinstance(config, str):
        return config, {}
    if isinstance(setting, dict) and isinstance(config, dict):
        return str(setting["class_name"]), config
    raise UnsupportedError(f"Activation {setting!r:.60}.", f"One of relu, softmax, {', '.join(PLAIN)}.")


def activate(b: Builder, op: Operator, x: Operand, setting: Any) -> Operand:
    """The activation that a layer ends in."""
    name, config = name_of(setting)
    if name == "linear":
        return x
    if op.kind == "Activation":
        return _apply(b, op, x, name, config)
    with b.part(name.lower()):
        return _apply(b, op, x, name, config)


def _apply(b: Builder, op: Operator, x: Operand, name: str, config: dict[str, Any]) -> Operand:
    if name in ("relu", "ReLU"):
        limit = config.get("max_value")
        return operators.activation(b, x, ReLU()) if limit is None else operators.clip(b, x, 0, limit)
    if name == "relu6":
        return operators.clip(b, x, 0, 6)
    if name == "softmax":
        return operators.softmax(b, x, -1)
    if name == "log_softmax":
        return operators.log_softmax(b, x, -1)
    if name == "leaky_relu":
        return operators.activation(b, x, "LeakyReLU", negative_slope=0.2 if op.version >= 3 else 0.3)
    if name == "hard_sigmoid":
        return operators.hard_sigmoid(b, x) if op.version >= 3 else operators.hard_sigmoid(b, x, 0.2)
    if name in PLAIN:
        return operators.activation(b, x, PLAIN[name])
    raise UnsupportedError(f"Activation '{name:.100}'.", f"One of relu, softmax, {', '.join(PLAIN)}.")


def _filled(value: Any, inputs: tuple[Operand, ...]) -> Any:
    """An argument with its tensors in place of the slots."""
    if isinstance(value, Slot):
        return inputs[value.index]
    if isinstance(value, list):
        return [_filled(part, inputs) for part in value]
    return value


def _arguments(op: Operator, inputs: tuple[Operand, ...], *names: str) -> list[Any]:
    """Arguments in the order of `names`, by place or by name; None if they are left out."""
    given = [_filled(value, inputs) for value in op.attributes["arguments"]]
    by_name = {key: _filled(value, inputs) for key, value in op.attributes["keywords"].items()}
    found = []
    for place, name in enumerate(names):
        value = given[place] if place < len(given) else by_name.get(name, op.attributes.get(name))
        found.append(value)
    return found


def _operand(value: Any) -> Operand:
    if isinstance(value, Value):
        return value
    return np.asarray(value, np.float64)


def binary(function: Callable[..., Operand], first: str = "x1", second: str = "x2") -> Callable[..., Operand]:
    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        x, y = _arguments(op, inputs, first, second)
        return function(b, _operand(x), _operand(y))

    return handler


def unary(kind: str, **config: Any) -> Callable[..., Operand]:
    return lambda b, op, x, *_: operators.activation(b, x, kind, **config)


def reduction(kind: type) -> Callable[..., Operand]:
    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        x, axis, keepdims = _arguments(op, inputs, "x", "axis", "keepdims")
        axes = [axis] if isinstance(axis, int) else axis
        if axes is None:
            raise UnsupportedError("It reduces the batch.", "Axes of an example.")
        return operators.reduce(b, x, kind, axes, keepdims=bool(keepdims))

    return handler


def reshape_function(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, shape = _arguments(op, inputs, "x", "newshape")
    return shapes.reshape(b, x, [x.shape[0] if n is None else n for n in shape])


def transpose(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axes = _arguments(op, inputs, "x", "axes")
    return shapes.transpose(b, x, axes)


def expand_dims(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return shapes.unsqueeze(b, x, [axis])


def squeeze(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return shapes.squeeze(b, x, None if axis is None else [axis] if isinstance(axis, int) else axis)


def concatenate_function(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    values, axis = _arguments(op, inputs, "xs", "axis")
    return shapes.concatenate(b, values, 0 if axis is None else axis)


def split(b: Builder, op: Operator, *inputs: Operand) -> tuple[Operand, ...]:
    x, parts, axis = _arguments(op, inputs, "x", "indices_or_sections", "axis")
    axis = (axis or 0) % len(x.shape)
    if isinstance(parts, int):
        if parts < 1 or x.shape[axis] % parts:
            raise UnsupportedError(f"{parts} parts of an axis of {x.shape[axis]}.", "Equal parts.")
        return shapes.split(b, x, axis, [x.shape[axis] // parts] * parts)
    ends = [*parts, x.shape[axis]]
    return shapes.split(b, x, axis, [end - begin for begin, end in zip([0, *parts], ends, strict=True)])


def clip(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, low, high = _arguments(op, inputs, "x", "x_min", "x_max")
    return operators.clip(b, x, low, high)


def relu_function(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return operators.activation(b, x, ReLU())


def relu6(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return operators.clip(b, x, 0, 6)


def leaky_relu_function(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, slope = _arguments(op, inputs, "x", "negative_slope")
    return operators.activation(b, x, "LeakyReLU", negative_slope=0.2 if slope is None else slope)


def gelu(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, approximate = _arguments(op, inputs, "x", "approximate")
    return operators.activation(b, x, "GELU", approximate=approximate is None or bool(approximate))


def softmax_function(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return operators.softmax(b, x, -1 if axis is None else axis)


def log_softmax(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return operators.log_softmax(b, x, -1 if axis is None else axis)


def pad(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, sides, mode, value = _arguments(op, inputs, "x", "pad_width", "mode", "constant_values")
    if mode not in (None, "constant", "edge", "reflect", "symmetric"):
        raise UnsupportedError(f"mode={mode!r:.40}.", "constant, edge, reflect or symmetric.")
    return operators.pad(b, x, [(int(n), int(m)) for n, m in sides], float(value or 0), mode or "constant")


def hard_sigmoid(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return operators.hard_sigmoid(b, x)


def negative(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return operators.scale(b, x, -1.0)


def power(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, exponent = _arguments(op, inputs, "x1", "x2")
    return operators.power(b, x, float(exponent))


def where(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    condition, x, y = _arguments(op, inputs, "condition", "x1", "x2")
    return operators.where(b, *(a if isinstance(a, Value) else np.asarray(a) for a in (condition, x, y)))


def broadcast_to(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, shape = _arguments(op, inputs, "x", "shape")
    return shapes.expand(b, x, [1 if n is None else n for n in shape])


def _comparison(kind: str) -> Callable[..., Operand]:
    return binary(lambda b, x, y: operators.compare(b, kind, x, y))


_KERAS = {
    "Absolute": unary("Abs"), "Add": binary(operators.add), "BroadcastTo": broadcast_to,
    "Clip": clip, "Concatenate": concatenate_function,
    "Divide": binary(operators.divide), "Elu": unary("ELU"), "Exp": unary("Exp"), "ExpandDims": expand_dims,
    "Equal": _comparison("equal"), "Greater": _comparison("greater"), "GreaterEqual": _comparison("greater_equal"),
    "Less": _comparison("less"), "LessEqual": _comparison("less_equal"), "Matmul": binary(operators.matmul),
    "Where": where,
    "Gelu": gelu, "HardSigmoid": hard_sigmoid, "HardSilu": unary("HardSwish"), "LeakyRelu": leaky_relu_function,
    "Log": unary("Log"), "LogSoftmax": log_softmax, "Max": reduction(Max),
    "Maximum": binary(lambda b, x, y: operators.extreme(b, x, y, True)), "Mean": reduction(Mean),
    "Minimum": binary(lambda b, x, y: operators.extreme(b, x, y, False)), "Multiply": binary(operators.multiply),
    "Negative": negative, "Pad": pad, "Power": power, "Relu": relu_function, "Relu6": relu6,
    "Reshape": reshape_function,
    "Rsqrt": unary("Rsqrt"),
    "Selu": unary("SELU"), "Sigmoid": unary("Sigmoid"), "Silu": unary("SiLU"), "Softmax": softmax_function,
    "Softplus": unary("Softplus"), "Split": split, "Sqrt": unary("Sqrt"), "Square": unary("Square"),
    "Squeeze": squeeze, "Subtract": binary(operators.subtract), "Sum": reduction(Sum), "Tanh": unary("Tanh"),
    "Transpose": transpose, "TrueDivide": binary(operators.divide),
}  # fmt: skip
_TENSORFLOW = {
    "__operators__.add": binary(operators.add, "x", "y"), "math.add": binary(operators.add, "x", "y"),
    "math.multiply": binary(operators.multiply, "x", "y"), "math.subtract": binary(operators.subtract, "x", "y"),
    "math.truediv": binary(operators.divide, "x", "y"), "math.divide": binary(operators.divide, "x", "y"),
    "nn.relu": relu_function, "nn.relu6": relu6, "nn.silu": unary("SiLU"), "nn.softmax": softmax_function,
    "math.sigmoid": unary("Sigmoid"), "math.tanh": unary("Tanh"), "concat": concatenate_function,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {f"ops.{name}": handler for name, handler in _KERAS.items()} | {
    f"tf.{name}": handler for name, handler in _TENSORFLOW.items()
}


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
    return operators.conv(
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
    return operators.conv(b, y, _as_image(point), bias, channels=_channels(op))


def transposed_conv(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    """Keras's kernel is (height, width, filters, channels)."""
    extra = None if op.attributes.get("output_padding") is None else _pair(op, "output_padding")
    return operators.transposed_conv(
        b, computed(x), _as_image(kernel).transpose(0, 1, 3, 2), bias, strides=_pair(op, "strides"),
        padding=op.attributes.get("padding", "valid"), output_padding=extra, dilation=_pair(op, "dilation_rate"),
        channels=_channels(op),
    )  # fmt: skip


def dense(b: Builder, op: Operator, x: Operand, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    return operators.dense(b, computed(x), kernel, bias)


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
    return operators.batchnorm(b, computed(x), gamma, beta, mean, variance, channels=axis, **settings)


def groupnorm(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Value:
    rest = list(arrays)
    gamma = rest.pop(0) if op.attributes.get("scale", True) else None
    beta = rest.pop(0) if op.attributes.get("center", True) else None
    groups, epsilon = op.attributes.get("groups", 32), op.attributes.get("epsilon", 1e-3)
    return operators.group_normalization(b, computed(x), groups, gamma, beta, epsilon, op.attributes.get("axis", -1))


def layernorm(b: Builder, op: Operator, x: Operand, *arrays: np.ndarray) -> Value:
    rest, x = list(arrays), computed(x)
    gamma = rest.pop(0) if op.attributes.get("scale", True) else None
    beta = rest.pop(0) if op.attributes.get("center", True) else None
    axis = op.attributes.get("axis", -1)
    axes = axis if isinstance(axis, list) else [axis]
    return operators.layer_normalization(
        b, x, [x.axis(n) for n in axes], gamma, beta, op.attributes.get("epsilon", 1e-3)
    )


def layer_scale(b: Builder, op: Operator, x: Operand, scale: np.ndarray) -> Operand:
    """A factor for each channel, of ConvNeXt."""
    return operators.multiply(b, x, scale)


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
        return operators.add(b, operators.multiply(b, x, scale), shift)
    return operators.multiply(b, operators.subtract(b, x, shift), 1 / scale)


def unit_normalization(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", -1)
    axes = axis if isinstance(axis, list) else [axis]
    if len(axes) != 1:
        raise UnsupportedError(f"Unit length over the axes {axes!r:.60}.", "One axis.")
    return operators.unit_length(b, computed(x), axes[0])


def rescaling(b: Builder, op: Operator, x: Operand) -> Operand:
    scale, offset = (
        np.asarray(op.attributes.get(name, d), np.float64) for name, d in (("scale", 1.0), ("offset", 0.0))
    )
    if scale.size == offset.size == 1:
        return operators.scale(b, x, float(scale.reshape(())), float(offset.reshape(())))
    return operators.add(b, operators.multiply(b, x, scale), offset)


def prelu(b: Builder, op: Operator, x: Operand, slope: np.ndarray) -> Value:
    return operators.prelu(b, computed(x), slope)


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    slope, threshold = op.attributes.get("negative_slope") or 0.0, op.attributes.get("threshold") or 0.0
    highest = op.attributes.get("max_value")
    if threshold or (slope and highest is not None):
        raise UnsupportedError(f"ReLU with threshold={threshold}, negative_slope={slope}.", "ReLU(max_value).")
    if slope:
        return operators.activation(b, x, "LeakyReLU", negative_slope=slope)
    return operators.clip(b, x, 0, highest)


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    slope = op.attributes.get("negative_slope", op.attributes.get("alpha", 0.3))
    return operators.activation(b, x, "LeakyReLU", negative_slope=float(slope))


def elu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, "ELU", alpha=float(op.attributes.get("alpha", 1.0)))


def softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", -1)
    if not isinstance(axis, int):
        raise UnsupportedError(f"Softmax over the axes {axis!r:.60}.", "One axis.")
    return operators.softmax(b, x, axis)


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
    return operators.max_pool(b, computed(x), *_window(op), channels=_channels(op))


def average_pool(b: Builder, op: Operator, x: Operand) -> Value:
    return operators.average_pool(b, computed(x), *_window(op), channels=_channels(op))


def _global(kind: type) -> Layer:
    def pool(b: Builder, op: Operator, x: Operand) -> Operand:
        x = computed(x)
        axes = [axis for axis in range(x.rank) if axis not in (0, x.axis(_channels(op)))]
        return operators.reduce(b, x, kind, axes, keepdims=bool(op.attributes.get("keepdims", False)))

    return pool


def zero_padding(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.pad(b, x, _sides(op, x, op.attributes["padding"]))


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
    return operators.resize(b, x, (height, width), mode, channels=_channels(op))


def resizing(b: Builder, op: Operator, x: Operand) -> Value:
    if op.attributes.get("crop_to_aspect_ratio") or op.attributes.get("pad_to_aspect_ratio"):
        raise UnsupportedError("Resizing that keeps the aspect ratio.", "Resizing to a height and a width.")
    size = op.attributes["height"], op.attributes["width"]
    mode = op.attributes.get("interpolation", "bilinear")
    return operators.resize(b, computed(x), size, mode, channels=_channels(op))


def _merge(function: Callable[..., Operand]) -> Layer:
    def merge(b: Builder, op: Operator, first: Operand, *others: Operand) -> Operand:
        for other in others:
            first = function(b, first, other)
        return first

    return merge


def average(b: Builder, op: Operator, *values: Operand) -> Operand:
    total = _merge(operators.add)(b, op, *values)
    return operators.scale(b, total, 1 / len(values))  # type: ignore[arg-type]


def concatenate(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes.get("axis", -1))


def identity(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


HANDLERS: dict[str, Callable[..., Any]] = {
    "Activation": layer(activation),
    "Add": _merge(operators.add),
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
    "Maximum": _merge(lambda b, x, y: operators.extreme(b, x, y, True)),
    "Minimum": _merge(lambda b, x, y: operators.extreme(b, x, y, False)),
    "Multiply": _merge(operators.multiply),
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
    "Subtract": _merge(operators.subtract),
    "UnitNormalization": unit_normalization,
    "UpSampling2D": upsampling,
    "ZeroPadding1D": zero_padding,
    "ZeroPadding2D": zero_padding,
    "training only": identity,
    **FUNCTIONS,
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


ARCHIVE, FILE = "a .keras archive", "a Keras model in HDF5"
# Layers that act in training alone, and have no counterpart here: they are left out, and the metadata name them.
TRAINING_ONLY = {"ActivityRegularization", "AlphaDropout", "GaussianDropout", "GaussianNoise", "RandomBrightness",
                 "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation",
                 "RandomZoom", "StochasticDepth"}  # fmt: skip


def read_archive(path: Path) -> ForeignGraph:
    """Read a .keras archive. Raises FormatError naming the file."""
    with open_arrays(path, "keras", ARCHIVE) as file:
        structure = configuration.parse(file.texts["config.json"], path)
        version = _version(file.texts.get("metadata.json", "{}"))
        return _graph(file, structure, _in_archive(file, structure), version)


def read_hdf5(path: Path) -> ForeignGraph:
    """Read a whole model in HDF5. Raises FormatError naming the file, and if it holds weights alone."""
    with open_arrays(path, "hdf5", FILE) as file:
        text = "".join(file.texts.get("@model_config", []))
        if not text:
            raise FormatError(f"{path} holds weights without a graph: say of which network, with network=….")
        structure = configuration.parse(text, path)
        version = "".join(file.texts.get("model_weights@keras_version", file.texts.get("@keras_version", ["3"])))
        return _graph(file, structure, _in_hdf5(file, structure), version)


def holds_graph(path: Path) -> bool:
    """True if an HDF5 file holds a model's structure. Raises FormatError if it can't be read."""
    with open_arrays(path, "hdf5", FILE) as file:
        return "@model_config" in file.texts


def _graph(
    file: ArrayFile, structure: Structure, weights: dict[tuple[str, ...], dict[str, str]], version: str
) -> ForeignGraph:
    """The graph, and the arrays of its layers. `weights`: the file's names of a layer's arrays, by role."""
    needed = {call.path: weights.get(call.path, {}) for call in structure.calls}
    arrays = file.read([name for names in needed.values() for name in names.values()])
    constants, operators, left_out = {}, [], []
    for call in structure.calls:
        own = {role: f"{'/'.join(call.path)}@{role}" for role in needed[call.path]}
        constants |= {own[role]: _float(arrays[name]) for role, name in needed[call.path].items()}
        if _acts_in_training_alone(call):
            left_out.append(f"{'/'.join(call.path)} ({call.kind})")
        operators.append(_operator(call, tuple(own.values()), version))
    notes: dict[str, Any] = {"left out, since they act in training alone": left_out} if left_out else {}
    inputs = tuple(
        TensorInfo(name, shape, dtype, "NHWC" if len(shape) == 4 else "") for name, shape, dtype in structure.inputs
    )
    return ForeignGraph("Keras", structure.name, inputs, structure.outputs, tuple(operators), constants, metadata=notes)


def _operator(call: Call, arrays: tuple[str, ...], version: str) -> Operator:
    kind = "custom layer" if call.is_custom else "training only" if _acts_in_training_alone(call) else call.kind
    called = {"class_name": call.kind, "arguments": call.arguments, "keywords": call.keywords, "arrays": len(arrays)}
    number = int(version[0]) if version[:1].isdigit() else 3
    settings, is_frozen = {**call.config, **called}, call.config.get("trainable") is False
    return Operator(kind, call.path[-1], (*call.inputs, *arrays), call.outputs, settings, number, is_frozen)


def _acts_in_training_alone(call: Call) -> bool:
    shape = call.config.get("noise_shape") if call.kind == "Dropout" else None
    return call.kind in TRAINING_ONLY or bool(shape)


def _float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def _version(metadata: str) -> str:
    try:
        return str(json.loads(metadata)["keras_version"])
    except (KeyError, RecursionError, TypeError, ValueError):
        return "3"


def _in_archive(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number: "layers/conv2d_1/vars/0". Keras numbers layers of a class; since 3.6 it
    writes the layer's name beside its arrays."""
    named = {group.removesuffix("/vars@name"): texts[0] for group, texts in file.texts.items()
             if group.endswith("/vars@name") and texts}  # fmt: skip
    folders: dict[tuple[str, ...], str] = {}
    for group, name in named.items():
        parts = group.split("/")
        around = [named.get("/".join(parts[: n + 1]), "") for n in range(1, len(parts) - 1, 2)]
        folders[(*around, name)] = group
    if not folders:
        folders = _numbered(structure)
    return {
        path: {str(n): name for n, name in enumerate(_numbered_arrays(file, folder))}
        for path, folder in folders.items()
    }


def _numbered_arrays(file: ArrayFile, folder: str) -> Iterator[str]:
    number = 0
    while (name := f"{folder}/vars/{number}") in file.arrays:
        yield name
        number += 1


def _numbered(structure: Structure) -> dict[tuple[str, ...], str]:
    """Folders by the classes of layers, as Keras numbers them."""
    folders: dict[tuple[str, ...], str] = {}
    counts: dict[str, int] = {}
    for call in structure.calls:
        if call.path in folders or call.kind.startswith("ops."):
            continue
        if len(call.path) > 1:
            raise FormatError(f"'{'/'.join(call.path)}' is in a nested model of an early Keras 3: save it anew.")
        snake = snake_case(call.kind)
        number = counts.get(snake, 0)
        counts[snake] = number + 1
        folders[call.path] = f"layers/{snake}" + (f"_{number}" if number else "")
    return folders


def _in_hdf5(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number. The arrays of a nested model are all in its group."""
    layers = list_layers(file)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for call in structure.calls:
        names = layers.get(call.path[0], [])
        if len(call.path) > 1:
            names = [name for name in names if name.split("/")[-2:-1] == [call.path[-1]]]
        found[call.path] = {str(n): name for n, name in enumerate(names)}
    return found


_whole = graph_format("Keras HDF5", (), b"", GraphReader(read_hdf5, HANDLERS, NEAREST))


def _read(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    """With a network, its weights by names of layers; without one, the model that the file describes."""
    return _whole.read(path, None, skip) if network is None else _weights(path, network, skip)


_weights = weights_of_a_network(keras_h5.read_weights)
register(graph_format("Keras", (".keras",), b"", GraphReader(read_archive, HANDLERS, NEAREST)))
register(Format("Keras HDF5", (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n", _read, _whole.graph))
