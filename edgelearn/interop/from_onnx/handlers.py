"""ONNX operators, opset 7 and later: one function each. https://onnx.ai/onnx/operators/"""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import LogSoftmax, Max, Mean, ReLU, Softmax, Sum

from ..importing import Builder, Operator, Value, arithmetic, shapes, windows
from . import layers, tensors
from .arguments import Operand, integers, known


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, ReLU())


def clip(b: Builder, op: Operator, x: Operand, low: Operand | None = None, high: Operand | None = None) -> Operand:
    smallest = op.attributes.get("min") if low is None else float(known(low, "minimum").reshape(()))
    largest = op.attributes.get("max") if high is None else float(known(high, "maximum").reshape(()))
    ends = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))  # no limits
    return arithmetic.clip(b, x, *(None if limit in ends else limit for limit in (smallest, largest)))


def hard_sigmoid(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.hard_sigmoid(b, x, op.attributes.get("alpha", 0.2), op.attributes.get("beta", 0.5))


def swish(b: Builder, op: Operator, x: Operand) -> Operand:
    if op.attributes.get("alpha", 1.0) != 1:
        raise UnsupportedError("Swish with another alpha than 1.", "x * sigmoid(x).")
    return arithmetic.activation(b, x, "SiLU")


def prelu(b: Builder, op: Operator, x: Value, slope: np.ndarray) -> Value:
    return arithmetic.prelu(b, x, known(slope, "slope"))


def _softmax(kind: Softmax | LogSoftmax):
    """Before opset 13 it is over all axes from `axis` on."""

    def handler(b: Builder, op: Operator, x: Operand) -> Operand:
        if op.version >= 13:
            return arithmetic.softmax(b, x, op.attributes.get("axis", -1), kind)
        axis, shape = op.attributes.get("axis", 1) % len(x.shape), x.shape
        flat = shapes.reshape(b, x, (*shape[:axis], -1)) if axis < len(shape) - 1 else x
        return shapes.reshape(b, arithmetic.softmax(b, flat, -1, kind), shape)

    return handler


def selu(b: Builder, op: Operator, x: Operand) -> Operand:
    given = [op.attributes.get(name, default) for name, default in (("alpha", 1.6732632), ("gamma", 1.0507010))]
    if not np.allclose(given, (1.6732632, 1.0507010), rtol=1e-4):
        raise UnsupportedError(f"Selu with alpha={given[0]}, gamma={given[1]}.", "The default numbers.")
    return arithmetic.activation(b, x, "SELU")


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
        return windows.reduce(b, x, kind, chosen or None, keepdims=bool(op.attributes.get("keepdims", 1)))

    return reduce


def _absolute(b: Builder, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "Abs")


def _squared(b: Builder, x: Operand) -> Operand:
    return arithmetic.power(b, x, 2.0)


def _negative(b: Builder, x: Operand) -> Operand:
    return arithmetic.scale(b, x, -1.0)


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
    return arithmetic.add(b, arithmetic.scale(b, x, op.attributes.get("scale", 1.0)), bias)


def _unary(kind: str, *names: tuple[str, str, float]):
    """An activation; `names`: (attribute, argument of the op, default)."""

    def handler(b: Builder, op: Operator, x: Operand) -> Operand:
        return arithmetic.activation(
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
    return _binary(lambda b, x, y: arithmetic.compare(b, kind, x, y))


def gelu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, "GELU", approximate=op.attributes.get("approximate", "none") == "tanh")


def power(b: Builder, op: Operator, x: Operand, exponent: Operand) -> Operand:
    return arithmetic.power(b, x, float(known(exponent, "exponent").reshape(())))


HANDLERS = {
    "Abs": _unary("Abs"),
    "Add": _binary(arithmetic.add),
    "And": _binary(arithmetic.multiply),
    "AveragePool": layers.average_pool,
    "BatchNormalization": layers.batchnorm,
    "Cast": tensors.cast,
    "Ceil": _folded(np.ceil),
    "Clip": clip,
    "Concat": tensors.concat,
    "Constant": tensors.constant,
    "ConstantOfShape": tensors.constant_of_shape,
    "Conv": layers.conv,
    "ConvTranspose": layers.conv_transpose,
    "DepthToSpace": tensors.depth_to_space,
    "DequantizeLinear": tensors.dequantize,
    "Div": _binary(arithmetic.divide),
    "Dropout": dropout,
    "Elu": _unary("ELU", ("alpha", "alpha", 1.0)),
    "Equal": _comparison("equal"),
    "Exp": _unary("Exp"),
    "Expand": tensors.expand,
    "Flatten": tensors.flatten,
    "Floor": _folded(np.floor),
    "Gather": tensors.gather,
    "Gelu": gelu,
    "Gemm": layers.gemm,
    "GlobalAveragePool": layers.global_average_pool,
    "GlobalMaxPool": layers.global_max_pool,
    "GroupNormalization": layers.group_normalization,
    "Greater": _comparison("greater"),
    "GreaterOrEqual": _comparison("greater_equal"),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _unary("HardSwish"),
    "Identity": identity,
    "ImageScaler": image_scaler,
    "InstanceNormalization": layers.instance_normalization,
    "LayerNormalization": layers.layer_normalization,
    "LRN": layers.local_response,
    "Less": _comparison("less"),
    "LessOrEqual": _comparison("less_equal"),
    "LeakyRelu": _unary("LeakyReLU", ("alpha", "negative_slope", 0.01)),
    "Log": _unary("Log"),
    "LogSoftmax": _softmax(LogSoftmax()),
    "LpNormalization": layers.lp_normalization,
    "MatMul": layers.matmul,
    "Max": variadic(lambda b, x, y: arithmetic.extreme(b, x, y, True)),
    "MaxPool": layers.max_pool,
    "Min": variadic(lambda b, x, y: arithmetic.extreme(b, x, y, False)),
    "Mish": _unary("Mish"),
    "Mul": _binary(arithmetic.multiply),
    "Not": lambda b, op, x: arithmetic.compare(b, "equal", x, np.zeros((), np.float32)),
    "Neg": lambda b, op, x: arithmetic.scale(b, x, -1.0),
    "Or": _binary(lambda b, x, y: arithmetic.extreme(b, x, y, True)),
    "PRelu": prelu,
    "Pad": tensors.pad,
    "Pow": power,
    "QuantizeLinear": tensors.quantize,
    "Range": tensors.arange,
    "Reciprocal": _unary("Reciprocal"),
    "ReduceL1": _reduction(Sum, _absolute),
    "ReduceL2": _reduction(Sum, _squared, lambda b, x: arithmetic.power(b, x, 0.5)),
    "ReduceMax": _reduction(Max),
    "ReduceMean": _reduction(Mean),
    "ReduceMin": _reduction(Max, _negative, _negative),
    "ReduceSum": _reduction(Sum),
    "ReduceSumSquare": _reduction(Sum, _squared),
    "Relu": relu,
    "Reshape": tensors.reshape,
    "Resize": layers.resize,
    "Selu": selu,
    "Shape": tensors.shape_of,
    "Sigmoid": _unary("Sigmoid"),
    "Slice": tensors.slices,
    "Softmax": _softmax(Softmax()),
    "Softplus": _unary("Softplus"),
    "Softsign": _unary("Softsign"),
    "SpaceToDepth": tensors.space_to_depth,
    "Split": tensors.split,
    "Sqrt": _unary("Sqrt"),
    "Squeeze": tensors.squeeze,
    "Sub": _binary(arithmetic.subtract),
    "Sum": variadic(arithmetic.add),
    "Swish": swish,
    "Tanh": _unary("Tanh"),
    "Transpose": tensors.transpose,
    "Unsqueeze": tensors.unsqueeze,
    "Upsample": layers.resize,
    "Where": lambda b, op, condition, x, y: arithmetic.where(b, condition, x, y),
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
