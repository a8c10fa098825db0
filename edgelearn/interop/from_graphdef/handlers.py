"""TensorFlow operators: one function each. https://www.tensorflow.org/api_docs/python/tf/raw_ops"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import LocalResponseNormalization, Max, Mean, ReLU, Sum

from ..importing import Builder, Operator, arithmetic, linear, shapes, tensorflow, windows
from ..importing.tensorflow import Operand, binary, computed, constant_only, integers, known, same, unary
from ..importing.tensorflow_handlers import add_n, expand_dims, fill, pad, power, shape_of, slices, split_v, transpose


def _channels(op: Operator) -> int:
    """The axis of the channels."""
    return 1 if op.attributes.get("data_format") == "NCHW" else -1


def _pixels(op: Operator, name: str) -> tuple[int, int]:
    """The numbers for height and width in an attribute with one for each axis; default 1."""
    numbers = op.attributes.get(name) or [1, 1, 1, 1]
    if len(numbers) != 4 or min(numbers) < 1:
        raise FormatError(f"{op.kind} '{op.name}' has {name}={numbers}: the file is damaged.")
    return (numbers[2], numbers[3]) if _channels(op) == 1 else (numbers[1], numbers[2])


def _padding(op: Operator) -> Any:
    padding = op.attributes.get("padding", "")
    if padding != "EXPLICIT":
        return padding.lower()
    sides = op.attributes.get("explicit_paddings") or []
    if len(sides) != 8:
        raise FormatError(f"{op.kind} '{op.name}' has explicit_paddings={sides}: the file is damaged.")
    first = 4 if _channels(op) == 1 else 2
    return tuple(sides[first : first + 2]), tuple(sides[first + 2 : first + 4])


def _window(op: Operator) -> dict[str, Any]:
    return {"strides": _pixels(op, "strides"), "padding": _padding(op), "channels": _channels(op)}


def conv(b: Builder, op: Operator, x: Operand, kernel: Operand) -> Operand:
    """The kernel is (height, width, channels of a group, filters)."""
    x, array = computed(x), known(kernel, "kernel")
    groups = x.shape[_channels(op)] // max(array.shape[2], 1)
    return linear.conv(b, x, array, dilation=_pixels(op, "dilations"), groups=groups, **_window(op))


def depthwise(b: Builder, op: Operator, x: Operand, kernel: Operand) -> Operand:
    dilation = _pixels(op, "dilations")
    return tensorflow.depthwise(b, computed(x), known(kernel, "kernel"), None, dilation=dilation, **_window(op))


def local_response(b: Builder, op: Operator, x: Operand) -> Operand:
    numbers = [op.attributes.get(name, default) for name, default in (("alpha", 1.0), ("beta", 0.5), ("bias", 1.0))]
    size = 2 * max(op.attributes.get("depth_radius", 5), 0) + 1
    return arithmetic.local_response(b, computed(x), LocalResponseNormalization(size, *numbers))


def transposed_conv(b: Builder, op: Operator, sizes: Operand, kernel: Operand, x: Operand) -> Operand:
    """The kernel is (height, width, filters, channels); `sizes` is the shape of the output."""
    y = linear.transposed_conv(b, computed(x), known(kernel, "kernel").transpose(0, 1, 3, 2), **_window(op))
    if isinstance(sizes, np.ndarray) and integers(sizes)[1:] != list(y.shape[1:]):
        raise UnsupportedError(f"An output of {tuple(integers(sizes))}; expected {y.shape}.", "Keras's sizes.")
    return y


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    a = op.attributes
    x = shapes.turn(b, x) if a.get("transpose_a", False) or a.get("adj_x", False) else x
    y = shapes.turn(b, y) if a.get("transpose_b", False) or a.get("adj_y", False) else y
    return linear.matmul(b, x, y)


def bias_add(b: Builder, op: Operator, x: Operand, bias: Operand) -> Operand:
    array = known(bias, "bias")
    if _channels(op) == 1 and len(x.shape) == 4:
        array = array.reshape(-1, 1, 1)
    return arithmetic.add(b, x, array)


def batchnorm(
    b: Builder, op: Operator, x: Operand, gamma: Operand, beta: Operand, mean: Operand, variance: Operand
) -> tuple[Operand, ...]:
    if op.attributes.get("is_training", True):
        raise UnsupportedError(
            "It takes its statistics from the batch: the graph was frozen while training.", "A graph for inference."
        )
    arrays = [known(array, what) for array, what in
              ((gamma, "gamma"), (beta, "beta"), (mean, "mean"), (variance, "variance"))]  # fmt: skip
    epsilon = op.attributes.get("epsilon", 1e-4)
    return (linear.batchnorm(b, computed(x), *arrays, epsilon=epsilon, channels=_channels(op)),)


def average_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    return windows.average_pool(b, computed(x), _pixels(op, "ksize"), **_window(op))


def max_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    return windows.max_pool(b, computed(x), _pixels(op, "ksize"), **_window(op))


def _reduction(kind: type):
    def reduce(b: Builder, op: Operator, x: Operand, axes: Operand) -> Operand:
        keepdims = bool(op.attributes.get("keep_dims", False))
        return windows.reduce(b, x, kind, integers(axes, "axes"), keepdims=keepdims)

    return reduce


def concat(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    """ConcatV2 has the axis at the end, Concat in front."""
    values, axis = (inputs[1:], inputs[0]) if op.kind == "Concat" else (inputs[:-1], inputs[-1])
    return shapes.concatenate(b, values, integers(axis, "axis")[0])


def reshape(b: Builder, op: Operator, x: Operand, shape: Operand) -> Operand:
    return shapes.reshape(b, x, integers(shape))


def squeeze(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.squeeze(b, x, op.attributes.get("squeeze_dims") or None)


def split(b: Builder, op: Operator, axis: Operand, x: Operand) -> tuple[Operand, ...]:
    (place,), count = integers(axis, "axis"), len(op.outputs)
    if x.shape[place] % count:
        raise FormatError(f"{op.kind} '{op.name}': {count} parts of {x.shape}. The file is damaged.")
    return shapes.split(b, x, place, [x.shape[place] // count] * count)


def strided_slice(b: Builder, op: Operator, x: Operand, begin: Operand, end: Operand, strides: Operand) -> Operand:
    first, last = integers(begin, "begin"), integers(end, "end")
    return tensorflow.strided_slice(b, x, first, last, integers(strides, "strides"), op.attributes)


def pack(b: Builder, op: Operator, *values: Operand) -> Operand:
    return tensorflow.pack(b, values, op.attributes.get("axis", 0))


def unpack(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    return tensorflow.unpack(b, x, op.attributes.get("axis", 0))


def gather(b: Builder, op: Operator, x: Operand, indices: Operand, axis: Operand) -> Operand:
    if op.attributes.get("batch_dims", 0):
        raise UnsupportedError("Gather with batch_dims.", "Gather along one axis.")
    return shapes.gather(b, x, indices, integers(axis, "axis")[0])


def mirror_pad(b: Builder, op: Operator, x: Operand, sides: Operand) -> Operand:
    mode = tensorflow.MIRRORS.get(op.attributes.get("mode", ""), "reflect")
    return tensorflow.pad(b, x, known(sides, "paddings"), mode=mode)


def _resize(mode: str):
    def resize(b: Builder, op: Operator, x: Operand, size: Operand) -> Operand:
        corners, half = op.attributes.get("align_corners", False), op.attributes.get("half_pixel_centers", False)
        return tensorflow.resize(b, computed(x), integers(size, "size"), mode, corners, half)

    return resize


def depth_to_space(b: Builder, op: Operator, x: Operand) -> Operand:
    return tensorflow.depth_to_space(b, x, _block(op))


def space_to_depth(b: Builder, op: Operator, x: Operand) -> Operand:
    return tensorflow.space_to_depth(b, x, _block(op))


def _block(op: Operator) -> int:
    if op.attributes.get("data_format", "NHWC") != "NHWC":
        raise UnsupportedError(f"data_format={op.attributes['data_format']}.", "NHWC.")
    return op.attributes.get("block_size", 1)


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "LeakyReLU", negative_slope=op.attributes.get("alpha", 0.2))


def cast(b: Builder, op: Operator, x: Operand) -> Operand:
    """Values stay as they are; constants get their type."""
    kind = op.attributes.get("DstT", "float32")
    return x.astype(kind) if isinstance(x, np.ndarray) and kind in ("float32", "int32", "int64", "bool") else x


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, ReLU())


def relu6(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.clip(b, x, 0, 6)


def fused(b: Builder, op: Operator, x: Operand, kernel: Operand, *arguments: Operand) -> Operand:
    """_FusedConv2D and its like, which TensorFlow's optimizer writes: a linear operator, and a list of others."""
    first = {"_FusedConv2D": conv, "_FusedDepthwiseConv2dNative": depthwise, "_FusedMatMul": matmul}[op.kind]
    y, rest = first(b, op, x, kernel), list(arguments)
    for name in op.attributes.get("fused_ops") or []:
        if name == "BiasAdd":
            y = bias_add(b, op, y, rest.pop(0))
        elif name == "FusedBatchNorm":
            arrays = [known(array, "statistics") for array in rest[:4]]
            y = linear.batchnorm(b, computed(y), *arrays, epsilon=op.attributes.get("epsilon", 1e-4),
                                 channels=_channels(op))  # fmt: skip
            rest = rest[4:]
        elif name in ("Relu", "Relu6", "Elu", "Sigmoid", "Tanh"):
            y = HANDLERS[name](b, op, y)
        else:
            raise UnsupportedError(f"Fused with '{name}'.", "BiasAdd, FusedBatchNorm and activations.")
    return y


HANDLERS: dict[str, Any] = {
    "Abs": unary("Abs"),
    "Add": binary(arithmetic.add),
    "AddN": add_n,
    "AddV2": binary(arithmetic.add),
    "AvgPool": average_pool,
    "BatchMatMul": matmul,
    "BatchMatMulV2": matmul,
    "BiasAdd": bias_add,
    "Cast": cast,
    "BroadcastTo": lambda b, op, x, shape: shapes.expand(b, x, integers(shape)),
    "CheckNumerics": same,
    "Concat": concat,
    "ConcatV2": concat,
    "Conv2D": conv,
    "Conv2DBackpropInput": transposed_conv,
    "DepthToSpace": depth_to_space,
    "DepthwiseConv2dNative": depthwise,
    "Elu": unary("ELU"),
    "Exp": unary("Exp"),
    "ExpandDims": expand_dims,
    "FakeQuantWithMinMaxArgs": same,
    "FakeQuantWithMinMaxVars": same,
    "FakeQuantWithMinMaxVarsPerChannel": same,
    "Fill": fill,
    "FusedBatchNorm": batchnorm,
    "FusedBatchNormV2": batchnorm,
    "FusedBatchNormV3": batchnorm,
    "GatherV2": gather,
    "Greater": binary(lambda b, x, y: arithmetic.compare(b, "greater", x, y)),
    "GreaterEqual": binary(lambda b, x, y: arithmetic.compare(b, "greater_equal", x, y)),
    "Identity": same,
    "IdentityN": lambda b, op, *inputs: inputs,
    "LeakyRelu": leaky_relu,
    "Less": binary(lambda b, x, y: arithmetic.compare(b, "less", x, y)),
    "LessEqual": binary(lambda b, x, y: arithmetic.compare(b, "less_equal", x, y)),
    "Log": unary("Log"),
    "MatMul": matmul,
    "Max": _reduction(Max),
    "MaxPool": max_pool,
    "LRN": local_response,
    "LogSoftmax": lambda b, op, x: arithmetic.log_softmax(b, x, -1),
    "Maximum": lambda b, op, x, y: arithmetic.extreme(b, x, y, True),
    "Mean": _reduction(Mean),
    "Minimum": lambda b, op, x, y: arithmetic.extreme(b, x, y, False),
    "MirrorPad": mirror_pad,
    "Mul": binary(arithmetic.multiply),
    "Neg": lambda b, op, x: arithmetic.scale(b, x, -1.0),
    "Pack": pack,
    "Pad": pad,
    "PadV2": pad,
    "PlaceholderWithDefault": same,
    "Pow": power,
    "PreventGradient": same,
    "Prod": constant_only(lambda x, axes: np.prod(x)),
    "Range": constant_only(tensorflow.arange),
    "RealDiv": binary(arithmetic.divide),
    "Relu": relu,
    "Relu6": relu6,
    "Reshape": reshape,
    "ResizeBilinear": _resize("bilinear"),
    "ResizeNearestNeighbor": _resize("nearest"),
    "Rsqrt": unary("Rsqrt"),
    "SelectV2": lambda b, op, condition, x, y: arithmetic.where(b, condition, x, y),
    "Selu": unary("SELU"),
    "Shape": shape_of,
    "Sigmoid": unary("Sigmoid"),
    "Slice": slices,
    "Softmax": lambda b, op, x: arithmetic.softmax(b, x, -1),
    "Softplus": unary("Softplus"),
    "Softsign": unary("Softsign"),
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "SplitV": split_v,
    "Sqrt": unary("Sqrt"),
    "Square": unary("Square"),
    "SquaredDifference": binary(tensorflow.squared_difference),
    "Squeeze": squeeze,
    "StopGradient": same,
    "StridedSlice": strided_slice,
    "Sub": binary(arithmetic.subtract),
    "Sum": _reduction(Sum),
    "Tanh": unary("Tanh"),
    "Transpose": transpose,
    "Unpack": unpack,
    "_FusedConv2D": fused,
    "_FusedDepthwiseConv2dNative": fused,
    "_FusedMatMul": fused,
}

_LOOP = "convolutions over time (DS-CNN, BC-ResNet): recurrent networks, which are loops (while), aren't read yet"
NEAREST = {
    "ArgMax": "leave it out: outputs=(its input,)",
    "AudioSpectrogram": "leave the front end out: inputs=(what it hands on,); edgelearn.data.audio computes features",
    "DecodeJpeg": "leave it out: inputs=(the picture,)",
    "DecodeWav": "leave the front end out: inputs=(what it hands on,)",
    "Mfcc": "leave the front end out: inputs=(what it hands on,)",
    "Merge": "freeze the graph for inference alone",
    "While": _LOOP,
    "StatelessWhile": _LOOP,
    "TensorListReserve": _LOOP,
    "SpaceToBatchND": "a convolution with dilation",
    "Switch": "freeze the graph for inference alone",
    "TopKV2": "leave it out: outputs=(its input,)",
}
