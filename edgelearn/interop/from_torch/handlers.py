"""ATen operators: one function each, with the arguments of their schemas. In-place forms have the same handlers."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import (
    ELU,
    GELU,
    Abs,
    Dropout,
    Exp,
    HardSwish,
    LeakyReLU,
    Log,
    Max,
    Mean,
    Mish,
    Reciprocal,
    ReLU,
    Rsqrt,
    Sigmoid,
    SiLU,
    Softplus,
    SpatialDropout2D,
    Sqrt,
    Square,
    Sum,
    Tanh,
)  # fmt: skip

from ..importing import Builder, Operator, Value, arithmetic, linear, shapes, windows
from . import tensors

Operand = Value | np.ndarray
Pair = tuple[int, int]
CHANNELS = 1


def conv(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    a, kernel = op.attributes, _constant(kernel)
    axes = kernel.ndim - 2
    kernel = kernel[:, :, None] if axes == 1 else kernel
    padding = a["padding"]
    if padding != "valid" and padding != "same":
        (top, left) = _pair(padding, axes, 0)
        padding = (top, top), (left, left)
    elif padding == "same":
        padding = _same(kernel.shape[2:], _pair(a["dilation"], axes))
    return linear.conv(
        b, x, kernel.transpose(2, 3, 1, 0), bias, strides=_pair(a["stride"], axes), padding=padding,
        dilation=_pair(a["dilation"], axes), groups=a["groups"], channels=CHANNELS,
    )  # fmt: skip


def conv_transpose(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    a, kernel = op.attributes, _constant(kernel)
    top, left = _pair(a["padding"], 2)
    return linear.transposed_conv(
        b, x, kernel.transpose(2, 3, 0, 1), bias, strides=_pair(a["stride"], 2), padding=((top, top), (left, left)),
        output_padding=_pair(a["output_padding"], 2), dilation=_pair(a["dilation"], 2), groups=a["groups"],
        channels=CHANNELS,
    )  # fmt: skip


def dense(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    return linear.dense(b, x, _constant(kernel).T, bias)


def addmm(b: Builder, op: Operator, bias: np.ndarray, x: Value, kernel: np.ndarray) -> Value:
    return linear.dense(b, x, _constant(kernel), _constant(bias))


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    return linear.matmul(b, x, y)


def attention(b: Builder, op: Operator, query: Operand, key: Operand, value: Operand) -> Operand:
    """softmax(query keyᵀ / sqrt(channels)) value"""
    a = op.attributes
    if a.get("is_causal") or a.get("enable_gqa"):
        raise UnsupportedError("Attention that is causal, or of groups.", "Attention of all to all.")
    factor = a.get("scale") or query.shape[-1] ** -0.5
    scores = arithmetic.scale(b, linear.matmul(b, query, shapes.turn(b, key)), factor)
    return linear.matmul(b, arithmetic.softmax(b, scores, -1), value)


def vector_norm(b: Builder, op: Operator, x: Operand) -> Operand:
    """The root of the sum of squares"""
    a = op.attributes
    if a.get("ord", 2) != 2:
        raise UnsupportedError(f"A norm of order {a['ord']}.", "The root of the sum of squares.")
    axes = a.get("dim") or range(len(x.shape))
    total = windows.reduce(b, arithmetic.power(b, x, 2.0), Sum, axes, bool(a.get("keepdim")))
    return arithmetic.power(b, total, 0.5)


def _comparison(kind: str):
    def handler(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
        return arithmetic.compare(b, kind, x, np.asarray(op.attributes["other"], np.float32) if y is None else y)

    return handler


def expand(b: Builder, op: Operator, x: Operand, like: Operand | None = None) -> Operand:
    """-1 keeps a size"""
    sizes = op.attributes["size"] if like is None else like.shape
    own = (1,) * (len(sizes) - len(x.shape)) + tuple(x.shape)
    return shapes.expand(b, x, [n if size == -1 else size for n, size in zip(own, sizes, strict=True)])


def batchnorm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None, beta: np.ndarray | None,
    mean: np.ndarray | None = None, variance: np.ndarray | None = None,
) -> Value:  # fmt: skip
    if mean is None or variance is None:
        raise UnsupportedError("BatchNorm without running statistics.", "track_running_stats=True.")
    momentum = 1 - op.attributes["momentum"]
    epsilon = op.attributes["eps"]
    return linear.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, momentum=momentum, channels=CHANNELS)


def layer_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None
) -> Value:
    axes = range(x.rank - len(op.attributes["normalized_shape"]), x.rank)
    return linear.layer_normalization(b, x, axes, gamma, beta, op.attributes["eps"])


def group_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None
) -> Value:
    return linear.group_normalization(b, x, op.attributes["num_groups"], gamma, beta, op.attributes["eps"], CHANNELS)


def instance_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None,
    mean: np.ndarray | None = None, variance: np.ndarray | None = None,
) -> Value:  # fmt: skip
    epsilon = op.attributes["eps"]
    if op.attributes["use_input_stats"] or mean is None or variance is None:
        return linear.group_normalization(b, x, -1, gamma, beta, epsilon, CHANNELS)
    return linear.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, channels=CHANNELS)


def max_pool(b: Builder, op: Operator, x: Value) -> Value:
    a, axes = op.attributes, x.rank - 2
    size, strides, dilation = (_pair(a[key] or a["kernel_size"], axes) for key in ("kernel_size", "stride", "dilation"))
    if dilation != (1, 1):
        raise UnsupportedError("Maximum pooling with dilation.", "Plain windows.")
    padding = _around(a["padding"], axes)
    return windows.max_pool(b, x, size, strides, padding, ceil=a["ceil_mode"], channels=CHANNELS)


def average_pool(b: Builder, op: Operator, x: Value) -> Value:
    a, axes = op.attributes, x.rank - 2
    if a.get("divisor_override"):
        raise UnsupportedError("divisor_override.", "The number of pixels.")
    size, strides = (_pair(a[key] or a["kernel_size"], axes) for key in ("kernel_size", "stride"))
    return windows.average_pool(
        b, x, size, strides, _around(a["padding"], axes), ceil=a["ceil_mode"], counts_padding=a["count_include_pad"],
        channels=CHANNELS,
    )  # fmt: skip


def adaptive_average_pool(b: Builder, op: Operator, x: Value) -> Operand:
    axes = x.rank - 2
    size = _pair(op.attributes["output_size"], axes)
    if size == (1, 1):
        return windows.reduce(b, x, Mean, range(2, x.rank), keepdims=True)
    return windows.adaptive_average_pool(b, x, size, channels=CHANNELS)


def _reduction(kind: type):
    def reduce(b: Builder, op: Operator, x: Operand) -> Operand:
        axes, keepdims = op.attributes.get("dim"), op.attributes.get("keepdim", False)
        every = range(len(x.shape)) if not isinstance(x, Value) else None
        return windows.reduce(b, x, kind, axes or every, keepdims)

    return reduce


def hardtanh(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.clip(b, x, op.attributes["min_val"], op.attributes["max_val"])


def clamp(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.clip(b, x, op.attributes.get("min"), op.attributes.get("max"))


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, LeakyReLU(float(op.attributes["negative_slope"])))


def elu(b: Builder, op: Operator, x: Operand) -> Operand:
    if op.attributes["scale"] != 1 or op.attributes["input_scale"] != 1:
        return arithmetic.activation(b, x, "SELU")
    return arithmetic.activation(b, x, ELU(float(op.attributes["alpha"])))


def gelu(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.activation(b, x, GELU(op.attributes["approximate"] == "tanh"))


def prelu(b: Builder, op: Operator, x: Value, slope: np.ndarray) -> Value:
    return arithmetic.prelu(b, x, _constant(slope).reshape(-1, *(1,) * (x.rank - 2)))


def softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.softmax(b, x, op.attributes["dim"])


def log_softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.log_softmax(b, x, op.attributes["dim"])


def dropout(b: Builder, op: Operator, x: Value) -> Value:
    """It draws in training; `p` is the module's, since the graph is the one for inference."""
    rate = float(op.attributes["p"])
    if not rate:
        return x
    return b.apply((SpatialDropout2D if op.kind == "feature_dropout" else Dropout)(rate), x)


def _arithmetic(function):
    """x with another value, or with a number; alpha multiplies the second."""

    def handler(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
        other = np.asarray(op.attributes["other"], np.float32) if y is None else y
        alpha = op.attributes.get("alpha", 1)
        return function(b, x, other if alpha == 1 else arithmetic.scale(b, other, alpha))

    return handler


def divide(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
    if op.attributes.get("rounding_mode"):
        raise UnsupportedError("Division that rounds.")
    return arithmetic.divide(b, x, np.asarray(op.attributes["other"], np.float32) if y is None else y)


def power(b: Builder, op: Operator, x: Operand) -> Operand:
    return arithmetic.power(b, x, float(op.attributes["exponent"]))


def reverse_subtract(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
    return arithmetic.subtract(b, np.asarray(op.attributes["other"], np.float32) if y is None else y, x)


def upsample(b: Builder, op: Operator, x: Value) -> Value:
    a = op.attributes
    factors = [float(f) for f in a.get("scale_factors") or (a.get("scales_h"), a.get("scales_w")) if f]
    size = a.get("output_size") or tuple(int(n * f) for n, f in zip(x.shape[2:], factors, strict=True))
    scale = (factors[0], factors[1]) if len(factors) == 2 else None
    if op.kind == "upsample_nearest2d":
        how = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
    else:
        how = {"mode": "bilinear", "coordinates": "align_corners" if a["align_corners"] else "half_pixel"}
    return windows.resize(b, x, (size[0], size[1]), scale=scale, channels=CHANNELS, **how)  # type: ignore[arg-type]


def _activation(function):
    return lambda b, op, x: arithmetic.activation(b, x, function())


def _pair(values: int | tuple[int, ...], axes: int, missing: int = 1) -> Pair:
    """(height, width); the height of a sequence is 1 pixel."""
    numbers = (values,) * axes if isinstance(values, int) else tuple(values) * (axes if len(values) == 1 else 1)
    if len(numbers) != axes or axes not in (1, 2):
        raise UnsupportedError(f"{axes} spatial axes.", "Images (2) and sequences (1).")
    return (missing, numbers[0]) if axes == 1 else (numbers[0], numbers[1])


def _around(padding: int | tuple[int, ...], axes: int) -> tuple[Pair, Pair]:
    top, left = _pair(padding or 0, axes, 0)
    return (top, top), (left, left)


def _same(kernel: tuple[int, ...], dilation: Pair) -> tuple[Pair, Pair]:
    """PyTorch's "same": the larger half at the end."""
    total = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    return (total[0] // 2, total[0] - total[0] // 2), (total[1] // 2, total[1] - total[1] // 2)


def _constant(x: Operand) -> np.ndarray:
    if not isinstance(x, np.ndarray):
        raise UnsupportedError("Both factors are computed.", "A weight.")
    return x


HANDLERS = {
    "_log_softmax": log_softmax,
    "_softmax": softmax,
    "abs": _activation(Abs),
    "adaptive_avg_pool1d": adaptive_average_pool,
    "adaptive_avg_pool2d": adaptive_average_pool,
    "add": _arithmetic(arithmetic.add),
    "addmm": addmm,
    "alias": tensors.identity,
    "amax": _reduction(Max),
    "avg_pool1d": average_pool,
    "avg_pool2d": average_pool,
    "batch_norm": batchnorm,
    "bmm": matmul,
    "cat": tensors.cat,
    "chunk": tensors.chunk,
    "clamp": clamp,
    "clamp_max": clamp,
    "clamp_min": clamp,
    "clone": tensors.identity,
    "constant_pad_nd": tensors.pad,
    "contiguous": tensors.identity,
    "conv1d": conv,
    "conv2d": conv,
    "conv_transpose2d": conv_transpose,
    "detach": tensors.identity,
    "div": divide,
    "dropout": dropout,
    "elu": elu,
    "embedding": lambda b, op, table, numbers: shapes.gather(b, table, numbers, 0),
    "eq": _comparison("equal"),
    "exp": _activation(Exp),
    "expand": expand,
    "expand_as": expand,
    "feature_dropout": dropout,
    "flatten": tensors.flatten,
    "ge": _comparison("greater_equal"),
    "gelu": gelu,
    "group_norm": group_norm,
    "gt": _comparison("greater"),
    "hardsigmoid": lambda b, op, x: arithmetic.hard_sigmoid(b, x),
    "hardswish": _activation(HardSwish),
    "hardtanh": hardtanh,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "le": _comparison("less_equal"),
    "leaky_relu": leaky_relu,
    "index_select": lambda b, op, x, numbers: shapes.gather(b, x, numbers, op.attributes["dim"]),
    "linalg_vector_norm": vector_norm,
    "linear": dense,
    "log": _activation(Log),
    "log_softmax": log_softmax,
    "lt": _comparison("less"),
    "matmul": matmul,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "mean": _reduction(Mean),
    "mish": _activation(Mish),
    "mm": matmul,
    "mul": _arithmetic(arithmetic.multiply),
    "narrow": tensors.narrow,
    "ne": _comparison("not_equal"),
    "neg": lambda b, op, x: arithmetic.scale(b, x, -1.0),
    "pad": tensors.pad,
    "permute": tensors.permute,
    "pixel_shuffle": tensors.pixel_shuffle,
    "pow": power,
    "prelu": prelu,
    "reciprocal": _activation(Reciprocal),
    "relu": _activation(ReLU),
    "relu6": lambda b, op, x: arithmetic.activation(b, x, ReLU(6)),
    "reshape": tensors.view,
    "rsqrt": _activation(Rsqrt),
    "reflection_pad1d": tensors.pad,
    "reflection_pad2d": tensors.pad,
    "replication_pad1d": tensors.pad,
    "replication_pad2d": tensors.pad,
    "rsub": reverse_subtract,
    "scaled_dot_product_attention": attention,
    "select": tensors.select,
    "sigmoid": _activation(Sigmoid),
    "silu": _activation(SiLU),
    "slice": tensors.part,
    "softmax": softmax,
    "softplus": _activation(Softplus),
    "split": tensors.split,
    "split_with_sizes": tensors.split,
    "sqrt": _activation(Sqrt),
    "square": _activation(Square),
    "squeeze": tensors.squeeze,
    "sub": _arithmetic(arithmetic.subtract),
    "sum": _reduction(Sum),
    "t": lambda b, op, x: shapes.transpose(b, x, range(len(x.shape))[::-1]),
    "tanh": _activation(Tanh),
    "transpose": tensors.transpose,
    "unflatten": tensors.unflatten,
    "unsqueeze": tensors.unsqueeze,
    "upsample_bilinear2d": upsample,
    "upsample_nearest2d": upsample,
    "view": tensors.view,
    "where": lambda b, op, condition, x, y: arithmetic.where(b, condition, x, y),
}

NEAREST = {
    "lstm": "Convolutions over time (DS-CNN, BC-ResNet).",
    "gru": "Convolutions over time (DS-CNN, BC-ResNet).",
}
