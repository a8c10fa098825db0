"""TFLite operators: one function each. https://www.tensorflow.org/mlir/tfl_ops"""

from __future__ import annotations

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import LocalResponseNormalization, Max, Mean, ReLU, Sum

from ..importing import Builder, Operator, Value, arithmetic, check_size, linear, shapes, tensorflow, windows
from ..importing.tensorflow import Operand, binary, computed, constant_only, integers, known, same, unary
from ..importing.tensorflow_handlers import add_n, expand_dims, fill, pad, power, shape_of, slices, split_v, transpose
from . import schema

DTYPES = {number: name for number, name in schema.TYPES.items() if name not in ("string", "resource", "variant")}


ACTIVATIONS = {
    "relu": lambda b, x: arithmetic.activation(b, x, ReLU()),
    "relu6": lambda b, x: arithmetic.clip(b, x, 0, 6),
    "relu_n1_to_1": lambda b, x: arithmetic.clip(b, x, -1, 1),
    "tanh": lambda b, x: arithmetic.activation(b, x, "Tanh"),
}


def fused(b: Builder, op: Operator, x: Operand) -> Operand:
    """The activation that an operator ends in."""
    name = op.attributes.get("activation", "none")
    if name == "none":
        return x
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"Activation '{name}'.", f"One of {', '.join(ACTIVATIONS)}.")
    with b.part(name):
        return ACTIVATIONS[name](b, x)


def _window(op: Operator) -> dict:
    strides = op.attributes["stride_h"], op.attributes["stride_w"]
    dilation = op.attributes.get("dilation_h", 1), op.attributes.get("dilation_w", 1)
    if min(*strides, *dilation) < 1:
        raise FormatError(f"{op.kind} '{op.name}' has strides {strides} and dilation {dilation}: the file is damaged.")
    return {"strides": strides, "padding": op.attributes["padding"], "dilation": dilation}


def conv(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand | None = None) -> Operand:
    """The kernel is (filters, height, width, channels of a group)."""
    x, array = computed(x), known(kernel, "kernel").transpose(1, 2, 3, 0)
    groups = x.shape[-1] // max(array.shape[2], 1)
    bias = None if bias is None else known(bias, "bias")
    return fused(b, op, linear.conv(b, x, array, bias, groups=groups, **_window(op)))


def depthwise(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand | None = None) -> Operand:
    """The kernel is (1, height, width, channels * multiplier)."""
    x, array = computed(x), known(kernel, "kernel")
    channels = x.shape[-1]
    array = array.reshape(*array.shape[1:3], channels, array.shape[3] // channels)
    bias = None if bias is None else known(bias, "bias")
    return fused(b, op, tensorflow.depthwise(b, x, array, bias, **_window(op)))


def transposed_conv(
    b: Builder, op: Operator, shape: Operand, kernel: Operand, x: Operand, bias: Operand | None = None
) -> Operand:
    """The kernel is (filters, height, width, channels); `shape` is that of the output."""
    x, array = computed(x), known(kernel, "kernel").transpose(1, 2, 3, 0)
    window, wanted = _window(op), integers(shape)[1:3]
    array_bias = None if bias is None else known(bias, "bias")
    padding, more = window["padding"], None
    if padding == "valid":  # rows and columns that no kernel reaches may be cut off, or be more than Keras's
        ends = zip(wanted, x.shape[1:3], window["strides"], array.shape[:2], strict=True)
        padding, more = ((0, 0), (0, 0)), [n - (size - 1) * stride - reach for n, size, stride, reach in ends]
        if min(more) < 0:
            raise UnsupportedError(f"An output of {tuple(wanted)}, which cuts the kernels off.", "Keras's sizes.")
        more = more[0], more[1]
    y = linear.transposed_conv(
        b, x, array, array_bias, strides=window["strides"], padding=padding, output_padding=more
    )  # fmt: skip
    if list(y.shape[1:]) != integers(shape)[1:]:
        raise UnsupportedError(f"An output of {tuple(integers(shape))}; expected {y.shape}.", "Keras's sizes.")
    return fused(b, op, y)


def biased_transposed_conv(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand) -> Operand:
    """MediaPipe's Convolution2DTransposeBias; the kernel is (filters, height, width, channels). Its options are three
    integers: padding (1: same) and strides (width, height)."""
    x, array = computed(x), known(kernel, "kernel").transpose(1, 2, 3, 0)
    if len(op.attributes["options"]) < 12:
        raise FormatError(f"{op.kind} '{op.name}' has options of {len(op.attributes['options'])} bytes, not 12.")
    padding, width, height = np.frombuffer(op.attributes["options"], "<i4", 3).tolist()
    if min(width, height) < 1:
        raise FormatError(f"{op.kind} '{op.name}' has strides {(height, width)}: the file is damaged.")
    sides = []
    for n, stride, size in zip(x.shape[1:3], (height, width), array.shape, strict=False):
        cut = max(0, size - (n - 1) % stride - 1) if padding == 1 else 0
        sides.append((cut // 2, cut - cut // 2))
    return linear.transposed_conv(
        b, x, array, known(bias, "bias"), strides=(height, width), padding=(sides[0], sides[1]), output_padding=(0, 0)
    )


def fully_connected(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand | None = None) -> Operand:
    """The kernel is (units, features)."""
    array = known(kernel, "kernel")
    if op.attributes["weights_format"]:
        raise UnsupportedError("Shuffled weights.", "The default format of weights.")
    x = computed(x)
    if not op.attributes["keep_num_dims"] and (len(x.shape) != 2 or x.shape[-1] != array.shape[1]):
        x = computed(shapes.reshape(b, x, (-1, array.shape[1])))
    return fused(b, op, linear.dense(b, x, array.T, None if bias is None else known(bias, "bias")))


def batch_matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    x = shapes.turn(b, x) if op.attributes["adj_x"] else x
    return linear.matmul(b, x, shapes.turn(b, y) if op.attributes["adj_y"] else y)


def _arithmetic(function):
    return lambda b, op, x, y: fused(b, op, function(b, x, y))


def average_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    size, window = (op.attributes["filter_h"], op.attributes["filter_w"]), _window(op)
    return fused(b, op, windows.average_pool(b, computed(x), size, window["strides"], window["padding"]))


def max_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    size, window = (op.attributes["filter_h"], op.attributes["filter_w"]), _window(op)
    return fused(b, op, windows.max_pool(b, computed(x), size, window["strides"], window["padding"]))


def _reduction(kind: type):
    def reduce(b: Builder, op: Operator, x: Operand, axes: Operand) -> Operand:
        return windows.reduce(b, x, kind, integers(axes, "axes"), keepdims=bool(op.attributes["keep_dims"]))

    return reduce


def concatenate(b: Builder, op: Operator, *values: Operand) -> Operand:
    return fused(b, op, shapes.concatenate(b, values, op.attributes["axis"]))


def reshape(b: Builder, op: Operator, x: Operand, shape: Operand | None = None) -> Operand:
    return shapes.reshape(b, x, op.attributes["shape"] if shape is None else integers(shape))


def squeeze(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.squeeze(b, x, op.attributes["axes"] or None)


def split(b: Builder, op: Operator, axis: Operand, x: Operand) -> tuple[Operand, ...]:
    (place,), count = integers(axis, "axis"), op.attributes["count"]
    if count < 1 or x.shape[place] % count:
        raise FormatError(f"{op.kind} '{op.name}': {count} parts of {x.shape}. The file is damaged.")
    return shapes.split(b, x, place, [x.shape[place] // count] * count)


def strided_slice(b: Builder, op: Operator, x: Operand, begin: Operand, end: Operand, strides: Operand) -> Operand:
    first, last = integers(begin, "begin"), integers(end, "end")
    if op.attributes["offset"]:
        last = [a + z for a, z in zip(first, last, strict=True)]
    return tensorflow.strided_slice(b, x, first, last, integers(strides, "strides"), op.attributes)


def pack(b: Builder, op: Operator, *values: Operand) -> Operand:
    return tensorflow.pack(b, values, op.attributes["axis"])


def unpack(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    return tensorflow.unpack(b, x, op.attributes["axis"])


def gather(b: Builder, op: Operator, x: Operand, indices: Operand) -> Operand:
    if op.attributes["batch_dims"]:
        raise UnsupportedError("Gather with batch_dims.", "Gather along one axis.")
    return shapes.gather(b, x, indices, op.attributes["axis"])


def mirror_pad(b: Builder, op: Operator, x: Operand, sides: Operand) -> Operand:
    return tensorflow.pad(b, x, known(sides, "paddings"), mode="symmetric" if op.attributes["mode"] else "reflect")


def _resize(mode: str):
    def resize(b: Builder, op: Operator, x: Operand, size: Operand) -> Operand:
        corners, half = op.attributes["align_corners"], op.attributes["half_pixel_centers"]
        return tensorflow.resize(b, computed(x), integers(size, "size"), mode, corners, half)

    return resize


def depth_to_space(b: Builder, op: Operator, x: Operand) -> Operand:
    return tensorflow.depth_to_space(b, x, op.attributes["block_size"])


def space_to_depth(b: Builder, op: Operator, x: Operand) -> Operand:
    return tensorflow.space_to_depth(b, x, op.attributes["block_size"])


def softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    beta = op.attributes["beta"]
    return arithmetic.softmax(b, x if beta == 1 else arithmetic.scale(b, x, beta), -1)


def local_response(b: Builder, op: Operator, x: Operand) -> Operand:
    a = op.attributes
    size = 2 * max(a["radius"], 0) + 1
    return arithmetic.local_response(b, computed(x), LocalResponseNormalization(size, a["alpha"], a["beta"], a["bias"]))


def unit_length(b: Builder, op: Operator, x: Operand) -> Operand:
    return fused(b, op, arithmetic.unit_length(b, computed(x)))


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "LeakyReLU", negative_slope=op.attributes["alpha"])


def gelu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "GELU", approximate=bool(op.attributes["approximate"]))


def prelu(b: Builder, op: Operator, x: Operand, slope: Operand) -> Operand:
    return arithmetic.prelu(b, computed(x), known(slope, "slope"))


def cast(b: Builder, op: Operator, x: Operand) -> Operand:
    kind = DTYPES.get(op.attributes["out_type"], "float32")
    kind = {"int4": "int8", "bfloat16": "float32"}.get(kind, kind)
    return x.astype(kind) if isinstance(x, np.ndarray) else arithmetic.as_type(b, x, kind)


def tile(b: Builder, op: Operator, x: Operand, multiples: Operand) -> Operand:
    counts = integers(multiples, "multiples")
    sizes = [n * count for n, count in zip(x.shape, counts, strict=True)]
    if isinstance(x, np.ndarray):
        check_size(tuple(sizes))
        return np.tile(x, counts)
    for axis, count in enumerate(counts):
        if count > 1 and x.shape[axis] > 1:
            x = computed(shapes.concatenate(b, [x] * count, axis))
    return shapes.expand(b, x, sizes)


def select(b: Builder, op: Operator, condition: Operand, x: Operand, y: Operand) -> Operand:
    if op.kind == "SELECT" and len(condition.shape) == 1 < len(x.shape):
        raise UnsupportedError("A condition for each example.", "A condition for each value.")
    return arithmetic.where(b, condition, x, y)


def _compare(kind: str):
    return binary(lambda b, x, y: arithmetic.compare(b, kind, x, y))


HANDLERS = {
    "ABS": unary("Abs"),
    "ADD": _arithmetic(arithmetic.add),
    "ADD_N": add_n,
    "AVERAGE_POOL_2D": average_pool,
    "BATCH_MATMUL": batch_matmul,
    "BROADCAST_TO": lambda b, op, x, shape: shapes.expand(b, x, integers(shape)),
    "CAST": cast,
    "CONCATENATION": concatenate,
    "CONV_2D": conv,
    "DEPTHWISE_CONV_2D": depthwise,
    "CUSTOM Convolution2DTransposeBias": biased_transposed_conv,
    "DENSIFY": same,
    "DEPTH_TO_SPACE": depth_to_space,
    "DEQUANTIZE": same,
    "DIV": _arithmetic(arithmetic.divide),
    "ELU": unary("ELU"),
    "EQUAL": _compare("equal"),
    "EXP": unary("Exp"),
    "EXPAND_DIMS": expand_dims,
    "FAKE_QUANT": same,
    "FILL": fill,
    "FULLY_CONNECTED": fully_connected,
    "GATHER": gather,
    "GELU": gelu,
    "GREATER": _compare("greater"),
    "GREATER_EQUAL": _compare("greater_equal"),
    "HARD_SWISH": unary("HardSwish"),
    "LEAKY_RELU": leaky_relu,
    "LESS": _compare("less"),
    "LESS_EQUAL": _compare("less_equal"),
    "L2_NORMALIZATION": unit_length,
    "LOCAL_RESPONSE_NORMALIZATION": local_response,
    "LOG": unary("Log"),
    "LOGICAL_AND": binary(arithmetic.multiply),
    "LOGICAL_NOT": lambda b, op, x: arithmetic.scale(b, x, -1.0, 1.0) if isinstance(x, Value) else ~x,
    "LOGICAL_OR": lambda b, op, x, y: arithmetic.extreme(b, x, y, True),
    "LOGISTIC": unary("Sigmoid"),
    "LOG_SOFTMAX": lambda b, op, x: arithmetic.log_softmax(b, x, -1),
    "MAXIMUM": lambda b, op, x, y: arithmetic.extreme(b, x, y, True),
    "MAX_POOL_2D": max_pool,
    "MEAN": _reduction(Mean),
    "MINIMUM": lambda b, op, x, y: arithmetic.extreme(b, x, y, False),
    "MIRROR_PAD": mirror_pad,
    "MUL": _arithmetic(arithmetic.multiply),
    "NOT_EQUAL": _compare("not_equal"),
    "NEG": lambda b, op, x: arithmetic.scale(b, x, -1.0),
    "PACK": pack,
    "PAD": pad,
    "PADV2": pad,
    "POW": power,
    "PRELU": prelu,
    "QUANTIZE": same,
    "RANGE": constant_only(tensorflow.arange),
    "REDUCE_MAX": _reduction(Max),
    "REDUCE_PROD": constant_only(lambda x, axes: np.prod(x)),
    "RELU": lambda b, op, x: arithmetic.activation(b, x, ReLU()),
    "RELU6": lambda b, op, x: arithmetic.clip(b, x, 0, 6),
    "RELU_0_TO_1": lambda b, op, x: arithmetic.clip(b, x, 0, 1),
    "RELU_N1_TO_1": lambda b, op, x: arithmetic.clip(b, x, -1, 1),
    "RESHAPE": reshape,
    "RESIZE_BILINEAR": _resize("bilinear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "RSQRT": unary("Rsqrt"),
    "SELECT": select,
    "SELECT_V2": select,
    "SHAPE": shape_of,
    "SLICE": slices,
    "SOFTMAX": softmax,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SQRT": unary("Sqrt"),
    "SQUARE": unary("Square"),
    "SQUARED_DIFFERENCE": binary(tensorflow.squared_difference),
    "SQUEEZE": squeeze,
    "STRIDED_SLICE": strided_slice,
    "SUB": _arithmetic(arithmetic.subtract),
    "SUM": _reduction(Sum),
    "TANH": unary("Tanh"),
    "TILE": tile,
    "TRANSPOSE": transpose,
    "TRANSPOSE_CONV": transposed_conv,
    "UNPACK": unpack,
}

NEAREST = {
    "ARG_MAX": "leave it out: the network ends in scores",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "convolutions over time",
    "LSTM": "convolutions over time",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "convolutions over time",
    "L2_POOL_2D": "AVERAGE_POOL_2D",
    "SPACE_TO_BATCH_ND": "a convolution with dilation",
    "SVDF": "DEPTHWISE_CONV_2D and CONV_2D",
    "TOPK_V2": "leave it out: the network ends in scores",
}
