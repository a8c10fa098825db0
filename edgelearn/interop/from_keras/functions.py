"""Functions between Keras's layers: keras.ops of Keras 3 ("ops.Add"), and those of TensorFlow in files of Keras 2
("tf.math.multiply")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import Max, Mean, ReLU, Sum

from ..importing import Builder, Operator, Value, arithmetic, linear, shapes, windows
from ..importing.tensorflow import Operand
from .config import Slot


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
    return lambda b, op, x, *_: arithmetic.activation(b, x, kind, **config)


def reduction(kind: type) -> Callable[..., Operand]:
    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        x, axis, keepdims = _arguments(op, inputs, "x", "axis", "keepdims")
        axes = [axis] if isinstance(axis, int) else axis
        if axes is None:
            raise UnsupportedError("It reduces the batch.", "Axes of an example.")
        return windows.reduce(b, x, kind, axes, keepdims=bool(keepdims))

    return handler


def reshape(b: Builder, op: Operator, *inputs: Operand) -> Operand:
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


def concatenate(b: Builder, op: Operator, *inputs: Operand) -> Operand:
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
    return arithmetic.clip(b, x, low, high)


def relu(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return arithmetic.activation(b, x, ReLU())


def relu6(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return arithmetic.clip(b, x, 0, 6)


def leaky_relu(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, slope = _arguments(op, inputs, "x", "negative_slope")
    return arithmetic.activation(b, x, "LeakyReLU", negative_slope=0.2 if slope is None else slope)


def gelu(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, approximate = _arguments(op, inputs, "x", "approximate")
    return arithmetic.activation(b, x, "GELU", approximate=approximate is None or bool(approximate))


def softmax(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return arithmetic.softmax(b, x, -1 if axis is None else axis)


def log_softmax(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, axis = _arguments(op, inputs, "x", "axis")
    return arithmetic.log_softmax(b, x, -1 if axis is None else axis)


def pad(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, sides, mode, value = _arguments(op, inputs, "x", "pad_width", "mode", "constant_values")
    if mode not in (None, "constant", "edge", "reflect", "symmetric"):
        raise UnsupportedError(f"mode={mode!r:.40}.", "constant, edge, reflect or symmetric.")
    return windows.pad(b, x, [(int(n), int(m)) for n, m in sides], float(value or 0), mode or "constant")


def hard_sigmoid(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return arithmetic.hard_sigmoid(b, x)


def negative(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return arithmetic.scale(b, x, -1.0)


def power(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, exponent = _arguments(op, inputs, "x1", "x2")
    return arithmetic.power(b, x, float(exponent))


def where(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    condition, x, y = _arguments(op, inputs, "condition", "x1", "x2")
    return arithmetic.where(b, *(a if isinstance(a, Value) else np.asarray(a) for a in (condition, x, y)))


def broadcast_to(b: Builder, op: Operator, *inputs: Operand) -> Operand:
    x, shape = _arguments(op, inputs, "x", "shape")
    return shapes.expand(b, x, [1 if n is None else n for n in shape])


def _comparison(kind: str) -> Callable[..., Operand]:
    return binary(lambda b, x, y: arithmetic.compare(b, kind, x, y))


_KERAS = {
    "Absolute": unary("Abs"), "Add": binary(arithmetic.add), "BroadcastTo": broadcast_to,
    "Clip": clip, "Concatenate": concatenate,
    "Divide": binary(arithmetic.divide), "Elu": unary("ELU"), "Exp": unary("Exp"), "ExpandDims": expand_dims,
    "Equal": _comparison("equal"), "Greater": _comparison("greater"), "GreaterEqual": _comparison("greater_equal"),
    "Less": _comparison("less"), "LessEqual": _comparison("less_equal"), "Matmul": binary(linear.matmul),
    "Where": where,
    "Gelu": gelu, "HardSigmoid": hard_sigmoid, "HardSilu": unary("HardSwish"), "LeakyRelu": leaky_relu,
    "Log": unary("Log"), "LogSoftmax": log_softmax, "Max": reduction(Max),
    "Maximum": binary(lambda b, x, y: arithmetic.extreme(b, x, y, True)), "Mean": reduction(Mean),
    "Minimum": binary(lambda b, x, y: arithmetic.extreme(b, x, y, False)), "Multiply": binary(arithmetic.multiply),
    "Negative": negative, "Pad": pad, "Power": power, "Relu": relu, "Relu6": relu6, "Reshape": reshape,
    "Rsqrt": unary("Rsqrt"),
    "Selu": unary("SELU"), "Sigmoid": unary("Sigmoid"), "Silu": unary("SiLU"), "Softmax": softmax,
    "Softplus": unary("Softplus"), "Split": split, "Sqrt": unary("Sqrt"), "Square": unary("Square"),
    "Squeeze": squeeze, "Subtract": binary(arithmetic.subtract), "Sum": reduction(Sum), "Tanh": unary("Tanh"),
    "Transpose": transpose, "TrueDivide": binary(arithmetic.divide),
}  # fmt: skip
_TENSORFLOW = {
    "__operators__.add": binary(arithmetic.add, "x", "y"), "math.add": binary(arithmetic.add, "x", "y"),
    "math.multiply": binary(arithmetic.multiply, "x", "y"), "math.subtract": binary(arithmetic.subtract, "x", "y"),
    "math.truediv": binary(arithmetic.divide, "x", "y"), "math.divide": binary(arithmetic.divide, "x", "y"),
    "nn.relu": relu, "nn.relu6": relu6, "nn.silu": unary("SiLU"), "nn.softmax": softmax,
    "math.sigmoid": unary("Sigmoid"), "math.tanh": unary("Tanh"), "concat": concatenate,
}  # fmt: skip
HANDLERS: dict[str, Callable[..., Any]] = {f"ops.{name}": handler for name, handler in _KERAS.items()} | {
    f"tf.{name}": handler for name, handler in _TENSORFLOW.items()
}
