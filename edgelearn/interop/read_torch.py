"""PyTorch modules become networks by torch.export: ATen operators, with the arguments of their schemas.

It needs PyTorch. In-place forms of operators are read as the plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
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
)

from . import operators, shapes
from .builder import Builder, Value
from .canonical import ForeignGraph, Operator, TensorInfo, gives_channels_first, takes_channels_first

Operand = Value | np.ndarray
PADS = {"pad": "constant", "reflection": "reflect", "replication": "edge", "replicate": "edge"}


def cat(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes["dim"])


def view(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.reshape(b, x, op.attributes.get("size") or op.attributes["shape"])


def flatten(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.flatten(b, x, op.attributes["start_dim"], op.attributes["end_dim"])


def unflatten(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes["dim"] % len(x.shape)
    return shapes.reshape(b, x, (*x.shape[:axis], *op.attributes["sizes"], *x.shape[axis + 1 :]))


def transpose(b: Builder, op: Operator, x: Operand) -> Operand:
    order = list(range(len(x.shape)))
    first, second = op.attributes["dim0"], op.attributes["dim1"]
    order[first], order[second] = order[second], order[first]
    return shapes.transpose(b, x, order)


def permute(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.transpose(b, x, op.attributes["dims"])


def squeeze(b: Builder, op: Operator, x: Operand) -> Operand:
    axes = op.attributes.get("dim")
    axes = (axes,) if isinstance(axes, int) else axes
    return shapes.squeeze(b, x, None if axes is None else [axis for axis in axes if x.shape[axis] == 1])


def unsqueeze(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.unsqueeze(b, x, [op.attributes["dim"]])


def part(b: Builder, op: Operator, x: Operand) -> Operand:
    a = op.attributes
    return shapes.slice_axis(b, x, a["dim"], a["start"], a["end"], a["step"])


def select(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.gather(b, x, np.asarray(op.attributes["index"]), op.attributes["dim"])


def narrow(b: Builder, op: Operator, x: Operand) -> Operand:
    a = op.attributes
    return shapes.slice_axis(b, x, a["dim"], a["start"], a["start"] + a["length"])


def chunk(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    n = x.shape[op.attributes["dim"]]
    return _parts(b, x, op.attributes["dim"], -(-n // op.attributes["chunks"]))


def split(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    sizes = op.attributes.get("split_size", op.attributes.get("split_sizes"))
    if isinstance(sizes, int):
        return _parts(b, x, op.attributes["dim"], sizes)
    return shapes.split(b, x, op.attributes["dim"], sizes)


def pad(b: Builder, op: Operator, x: Operand) -> Operand:
    pads = op.attributes.get("pad", op.attributes.get("padding"))
    given = op.attributes.get("mode") or op.kind.partition("_")[0]
    mode = PADS.get(given, given)
    if mode not in ("constant", "edge", "reflect"):
        raise UnsupportedError(f"mode='{mode}'.", "constant, reflect or replicate.")
    sides = [(pads[2 * n], pads[2 * n + 1]) for n in range(len(pads) // 2)][::-1]
    sides = [(0, 0)] * (len(x.shape) - len(sides)) + sides
    return operators.pad(b, x, sides, float(op.attributes.get("value") or 0), mode)


def pixel_shuffle(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["upscale_factor"]
    y = shapes.reshape(b, x, (n, c // s**2, s, s, h, w))
    return shapes.reshape(b, shapes.transpose(b, y, (0, 1, 4, 2, 5, 3)), (n, c // s**2, h * s, w * s))


def identity(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


def _parts(b: Builder, x: Operand, axis: int, size: int) -> tuple[Operand, ...]:
    n = x.shape[axis]
    return shapes.split(b, x, axis, [size] * (n // size) + ([n % size] if n % size else []))


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
    return operators.conv(
        b, x, kernel.transpose(2, 3, 1, 0), bias, strides=_pair(a["stride"], axes), padding=padding,
        dilation=_pair(a["dilation"], axes), groups=a["groups"], channels=CHANNELS,
    )  # fmt: skip


def conv_transpose(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    a, kernel = op.attributes, _constant(kernel)
    top, left = _pair(a["padding"], 2)
    return operators.transposed_conv(
        b, x, kernel.transpose(2, 3, 0, 1), bias, strides=_pair(a["stride"], 2), padding=((top, top), (left, left)),
        output_padding=_pair(a["output_padding"], 2), dilation=_pair(a["dilation"], 2), groups=a["groups"],
        channels=CHANNELS,
    )  # fmt: skip


def dense(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    return operators.dense(b, x, _constant(kernel).T, bias)


def addmm(b: Builder, op: Operator, bias: np.ndarray, x: Value, kernel: np.ndarray) -> Value:
    return operators.dense(b, x, _constant(kernel), _constant(bias))


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    return operators.matmul(b, x, y)


def attention(b: Builder, op: Operator, query: Operand, key: Operand, value: Operand) -> Operand:
    """softmax(query keyᵀ / sqrt(channels)) value"""
    a = op.attributes
    if a.get("is_causal") or a.get("enable_gqa"):
        raise UnsupportedError("Attention that is causal, or of groups.", "Attention of all to all.")
    factor = a.get("scale") or query.shape[-1] ** -0.5
    scores = operators.scale(b, operators.matmul(b, query, shapes.turn(b, key)), factor)
    return operators.matmul(b, operators.softmax(b, scores, -1), value)


def vector_norm(b: Builder, op: Operator, x: Operand) -> Operand:
    """The root of the sum of squares"""
    a = op.attributes
    if a.get("ord", 2) != 2:
        raise UnsupportedError(f"A norm of order {a['ord']}.", "The root of the sum of squares.")
    axes = a.get("dim") or range(len(x.shape))
    total = operators.reduce(b, operators.power(b, x, 2.0), Sum, axes, bool(a.get("keepdim")))
    return operators.power(b, total, 0.5)


def _comparison(kind: str):
    def handler(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
        return operators.compare(b, kind, x, np.asarray(op.attributes["other"], np.float32) if y is None else y)

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
    return operators.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, momentum=momentum, channels=CHANNELS)


def layer_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None
) -> Value:
    axes = range(x.rank - len(op.attributes["normalized_shape"]), x.rank)
    return operators.layer_normalization(b, x, axes, gamma, beta, op.attributes["eps"])


def group_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None
) -> Value:
    return operators.group_normalization(b, x, op.attributes["num_groups"], gamma, beta, op.attributes["eps"], CHANNELS)


def instance_norm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray | None = None, beta: np.ndarray | None = None,
    mean: np.ndarray | None = None, variance: np.ndarray | None = None,
) -> Value:  # fmt: skip
    epsilon = op.attributes["eps"]
    if op.attributes["use_input_stats"] or mean is None or variance is None:
        return operators.group_normalization(b, x, -1, gamma, beta, epsilon, CHANNELS)
    return operators.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, channels=CHANNELS)


def max_pool(b: Builder, op: Operator, x: Value) -> Value:
    a, axes = op.attributes, x.rank - 2
    size, strides, dilation = (_pair(a[key] or a["kernel_size"], axes) for key in ("kernel_size", "stride", "dilation"))
    if dilation != (1, 1):
        raise UnsupportedError("Maximum pooling with dilation.", "Plain windows.")
    padding = _around(a["padding"], axes)
    return operators.max_pool(b, x, size, strides, padding, ceil=a["ceil_mode"], channels=CHANNELS)


def average_pool(b: Builder, op: Operator, x: Value) -> Value:
    a, axes = op.attributes, x.rank - 2
    if a.get("divisor_override"):
        raise UnsupportedError("divisor_override.", "The number of pixels.")
    size, strides = (_pair(a[key] or a["kernel_size"], axes) for key in ("kernel_size", "stride"))
    return operators.average_pool(
        b, x, size, strides, _around(a["padding"], axes), ceil=a["ceil_mode"], counts_padding=a["count_include_pad"],
        channels=CHANNELS,
    )  # fmt: skip


def adaptive_average_pool(b: Builder, op: Operator, x: Value) -> Operand:
    axes = x.rank - 2
    size = _pair(op.attributes["output_size"], axes)
    if size == (1, 1):
        return operators.reduce(b, x, Mean, range(2, x.rank), keepdims=True)
    return operators.adaptive_average_pool(b, x, size, channels=CHANNELS)


def _reduction(kind: type):
    def reduce(b: Builder, op: Operator, x: Operand) -> Operand:
        axes, keepdims = op.attributes.get("dim"), op.attributes.get("keepdim", False)
        every = range(len(x.shape)) if not isinstance(x, Value) else None
        return operators.reduce(b, x, kind, axes or every, keepdims)

    return reduce


def hardtanh(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.clip(b, x, op.attributes["min_val"], op.attributes["max_val"])


def clamp(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.clip(b, x, op.attributes.get("min"), op.attributes.get("max"))


def leaky_relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, LeakyReLU(float(op.attributes["negative_slope"])))


def elu(b: Builder, op: Operator, x: Operand) -> Operand:
    if op.attributes["scale"] != 1 or op.attributes["input_scale"] != 1:
        return operators.activation(b, x, "SELU")
    return operators.activation(b, x, ELU(float(op.attributes["alpha"])))


def gelu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, GELU(op.attributes["approximate"] == "tanh"))


def prelu(b: Builder, op: Operator, x: Value, slope: np.ndarray) -> Value:
    return operators.prelu(b, x, _constant(slope).reshape(-1, *(1,) * (x.rank - 2)))


def softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.softmax(b, x, op.attributes["dim"])


def log_softmax(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.log_softmax(b, x, op.attributes["dim"])


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
        return function(b, x, other if alpha == 1 else operators.scale(b, other, alpha))

    return handler


def divide(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
    if op.attributes.get("rounding_mode"):
        raise UnsupportedError("Division that rounds.")
    return operators.divide(b, x, np.asarray(op.attributes["other"], np.float32) if y is None else y)


def power(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.power(b, x, float(op.attributes["exponent"]))


def reverse_subtract(b: Builder, op: Operator, x: Operand, y: Operand | None = None) -> Operand:
    return operators.subtract(b, np.asarray(op.attributes["other"], np.float32) if y is None else y, x)


def upsample(b: Builder, op: Operator, x: Value) -> Value:
    a = op.attributes
    factors = [float(f) for f in a.get("scale_factors") or (a.get("scales_h"), a.get("scales_w")) if f]
    size = a.get("output_size") or tuple(int(n * f) for n, f in zip(x.shape[2:], factors, strict=True))
    scale = (factors[0], factors[1]) if len(factors) == 2 else None
    if op.kind == "upsample_nearest2d":
        how = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
    else:
        how = {"mode": "bilinear", "coordinates": "align_corners" if a["align_corners"] else "half_pixel"}
    return operators.resize(b, x, (size[0], size[1]), scale=scale, channels=CHANNELS, **how)  # type: ignore[arg-type]


def _activation(function):
    return lambda b, op, x: operators.activation(b, x, function())


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
    "add": _arithmetic(operators.add),
    "addmm": addmm,
    "alias": identity,
    "amax": _reduction(Max),
    "avg_pool1d": average_pool,
    "avg_pool2d": average_pool,
    "batch_norm": batchnorm,
    "bmm": matmul,
    "cat": cat,
    "chunk": chunk,
    "clamp": clamp,
    "clamp_max": clamp,
    "clamp_min": clamp,
    "clone": identity,
    "constant_pad_nd": pad,
    "contiguous": identity,
    "conv1d": conv,
    "conv2d": conv,
    "conv_transpose2d": conv_transpose,
    "detach": identity,
    "div": divide,
    "dropout": dropout,
    "elu": elu,
    "embedding": lambda b, op, table, numbers: shapes.gather(b, table, numbers, 0),
    "eq": _comparison("equal"),
    "exp": _activation(Exp),
    "expand": expand,
    "expand_as": expand,
    "feature_dropout": dropout,
    "flatten": flatten,
    "ge": _comparison("greater_equal"),
    "gelu": gelu,
    "group_norm": group_norm,
    "gt": _comparison("greater"),
    "hardsigmoid": lambda b, op, x: operators.hard_sigmoid(b, x),
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
    "mul": _arithmetic(operators.multiply),
    "narrow": narrow,
    "ne": _comparison("not_equal"),
    "neg": lambda b, op, x: operators.scale(b, x, -1.0),
    "pad": pad,
    "permute": permute,
    "pixel_shuffle": pixel_shuffle,
    "pow": power,
    "prelu": prelu,
    "reciprocal": _activation(Reciprocal),
    "relu": _activation(ReLU),
    "relu6": lambda b, op, x: operators.activation(b, x, ReLU(6)),
    "reshape": view,
    "rsqrt": _activation(Rsqrt),
    "reflection_pad1d": pad,
    "reflection_pad2d": pad,
    "replication_pad1d": pad,
    "replication_pad2d": pad,
    "rsub": reverse_subtract,
    "scaled_dot_product_attention": attention,
    "select": select,
    "sigmoid": _activation(Sigmoid),
    "silu": _activation(SiLU),
    "slice": part,
    "softmax": softmax,
    "softplus": _activation(Softplus),
    "split": split,
    "split_with_sizes": split,
    "sqrt": _activation(Sqrt),
    "square": _activation(Square),
    "squeeze": squeeze,
    "sub": _arithmetic(operators.subtract),
    "sum": _reduction(Sum),
    "t": lambda b, op, x: shapes.transpose(b, x, range(len(x.shape))[::-1]),
    "tanh": _activation(Tanh),
    "transpose": transpose,
    "unflatten": unflatten,
    "unsqueeze": unsqueeze,
    "upsample_bilinear2d": upsample,
    "upsample_nearest2d": upsample,
    "view": view,
    "where": lambda b, op, condition, x, y: operators.where(b, condition, x, y),
}

NEAREST = {
    "lstm": "Convolutions over time (DS-CNN, BC-ResNet).",
    "gru": "Convolutions over time (DS-CNN, BC-ResNet).",
}


VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "slice", "select", "squeeze", "unsqueeze", "chunk",
         "split", "split_with_sizes", "narrow", "expand", "unflatten", "getitem"}  # fmt: skip


SEQUENCES = {
    "adaptive_avg_pool1d", "avg_pool1d", "batch_norm", "conv1d", "conv_transpose1d", "group_norm", "instance_norm",
    "max_pool1d",
}  # fmt: skip
PASSING = {
    "add", "cat", "clamp", "clone", "contiguous", "div", "dropout", "elu", "feature_dropout", "gelu", "hardsigmoid",
    "hardswish", "hardtanh", "leaky_relu", "log_softmax", "mul", "pad", "relu", "relu6", "sigmoid", "silu", "softmax",
    "softplus", "sub", "tanh",
}  # fmt: skip


def graph_of_module(module: Any, example: Any, name: str = "") -> ForeignGraph:
    """The graph of a module and its weights.

    Arguments:
    - `module`: an nn.Module; it is left as it is.
    - `example`: an input, or a tuple of them, with the batch as first axis; a tensor of 4 axes is (n, channels, height,
      width), one of 3 axes that convolutions read (n, channels, length).
    - `name`: of the network (default the class of the module).

    Raises FormatError if PyTorch can't export it.
    """
    import torch

    inputs = example if isinstance(example, tuple) else (example,)
    training = {part: part.training for part in module.modules()}
    dropouts = {
        path: part.p for path, part in module.named_modules() if type(part).__name__ in ("Dropout", "Dropout2d")
    }
    try:
        module.eval()
        with torch.no_grad():
            program = torch.export.export(module, inputs)
    except Exception as error:
        raise FormatError(
            f"PyTorch can't export {type(module).__name__} ({type(error).__name__}: {error!s:.300}). Remove what "
            f"depends on values of tensors from its forward method."
        ) from error
    finally:
        for part, mode in training.items():
            part.training = mode
    leaves = {path for path, part in module.named_modules() if path and not any(part.children())}
    return _graph(program, name or type(module).__name__, dropouts, leaves)


def _graph(program: Any, name: str, dropouts: dict[str, float], leaves: set[str]) -> ForeignGraph:
    """The graph of an exported program; `dropouts`: rates by path of the module; `leaves`: paths of modules without
    others inside."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers,
              **signature.inputs_to_lifted_tensor_constants}  # fmt: skip
    tensors = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    reader = _Reader(dropouts, leaves)
    constants = {key: tensors[path].detach().cpu().numpy() for key, path in stored.items()}
    fixed = {path for path, parameter in program.named_parameters() if not parameter.requires_grad}
    reader.fixed = {key for key, path in signature.inputs_to_parameters.items() if path in fixed}
    reader.trained = set(signature.inputs_to_parameters) - reader.fixed
    reader.paths = {key: path.rpartition(".")[0] for key, path in stored.items()}
    inputs: list[Any] = []
    outputs: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in stored:
            inputs.append(_info(node))
        elif node.op == "call_function":
            reader.read(node)
        elif node.op == "get_attr":
            constants[node.name] = program.constants[node.target].detach().cpu().numpy()
        elif node.op == "output":
            values = node.args[0] if isinstance(node.args[0], tuple | list) else node.args
            ends = (value.name for value in values if hasattr(value, "name"))
            outputs = [reader.names.get(end) or end for end in ends]
    changed = set(signature.buffers_to_mutate)
    outputs = [output for output in outputs if output not in changed]
    if not inputs or any(info is None for info in inputs):
        raise FormatError(f"{name} needs tensors as inputs.")
    known = {info.name: info for info in map(_info, program.graph.nodes) if info is not None}
    operators = tuple(reader.operators)
    inputs = [_as_sequence(info, takes_channels_first(info.name, operators, SEQUENCES, PASSING)) for info in inputs]
    begins = {info.name for info in inputs if info.layout}
    for end in set(outputs) & known.keys():
        known[end] = _as_sequence(known[end], gives_channels_first(end, operators, SEQUENCES, PASSING, begins))
    return ForeignGraph(
        "PyTorch", name, tuple(inputs), tuple(outputs), operators, constants | reader.constants, known
    )  # fmt: skip


def _as_sequence(info: TensorInfo, channels_first: bool) -> TensorInfo:
    """The tensor; a sequence (n, channels, length) says that it has channels first."""
    return replace(info, layout="NCHW") if channels_first and info.shape and len(info.shape) == 3 else info


class _Reader:
    """Collects operators. An operator that works in place gives its input another name from then on."""

    def __init__(self, dropouts: dict[str, float], leaves: set[str]) -> None:
        self.dropouts, self.leaves = dropouts, leaves
        self.operators: list[Operator] = []
        self.constants: dict[str, np.ndarray] = {}
        self.names: dict[str, str] = {}
        self.paths: dict[str, str] = {}  # of the module that a parameter belongs to
        self.fixed: set[str] = set()  # parameters that don't require gradients
        self.trained: set[str] = set()  # those that do

    def read(self, node: Any) -> None:
        kind = _kind(node)
        if kind == "getitem":
            return  # an output of the operator before
        in_place = kind.endswith("_") and not kind.endswith("__")
        inputs, attributes = self._arguments(node)
        outputs = _outputs(node)
        if kind.rstrip("_") in ("dropout", "feature_dropout"):
            attributes["p"] = self.dropouts.get(_module(node), 0.0)
        module = next((self.paths[name] for name in inputs if self.paths.get(name)), _module(node))
        name = module if module in self.leaves else node.name
        parameters = [key for key in inputs if key in self.fixed or key in self.trained]
        places = tuple(place for place, key in enumerate(parameters) if key in self.fixed)
        frozen = len(places) == len(parameters) or places if places else ()
        self.operators.append(Operator(kind.rstrip("_"), name, tuple(inputs), outputs, attributes, frozen=frozen))
        if in_place:
            self._rename(node, kind)

    def _rename(self, node: Any, kind: str) -> None:
        source = node.args[0]
        if source.op == "call_function" and _kind(source) in VIEWS and len(source.args[0].users) > 1:
            raise FormatError(f"{kind} '{node.name}' changes a view in place, and the whole is read: copy it.")
        for name in [key for key, value in self.names.items() if value == source.name]:
            self.names[name] = node.name
        self.names[source.name] = node.name

    def _arguments(self, node: Any) -> tuple[list[str], dict[str, Any]]:
        """Names of tensors, in the order of the operator's schema, and its other arguments by name."""
        given = dict(node.kwargs)
        inputs, attributes = [], {}
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return [], {"target": str(node.target)}
        for position, argument in enumerate(schema.arguments):
            value = (
                node.args[position] if position < len(node.args) else given.get(argument.name, argument.default_value)
            )
            kind = str(argument.type)
            if hasattr(value, "op"):
                inputs.append(self.names.get(value.name, value.name))
            elif "Tensor" in kind and isinstance(value, Sequence):
                inputs += ["" if part is None else self.names.get(part.name, part.name) for part in value]
            elif "Tensor" in kind:
                inputs.append("" if value is None else self._number(node, value))
            else:
                attributes[argument.name] = _plain(value)
        while inputs and not inputs[-1]:
            inputs.pop()
        return inputs, attributes

    def _number(self, node: Any, value: float) -> str:
        name = f"{node.name}:{len(self.constants)}"
        self.constants[name] = np.asarray(value, np.float32)
        return name


def _kind(node: Any) -> str:
    """The name of an operator, without its overload."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(node.target, "__name__", str(node.target))


def _module(node: Any) -> str:
    """The path of the module that a node was traced in."""
    stack = node.meta.get("nn_module_stack") or {}
    return list(stack.values())[-1][0] if stack else ""


def _outputs(node: Any) -> tuple[str, ...]:
    """Names of an operator's outputs; where it has several, those of the nodes that take them apart."""
    taken = {user.args[1]: user.name for user in node.users if _kind(user) == "getitem"}
    if not taken:
        return (node.name,)
    return tuple(taken.get(n, f"{node.name}:{n}") for n in range(max(taken) + 1))


def _info(node: Any) -> TensorInfo | None:
    value = node.meta.get("val") if hasattr(node, "meta") else None
    if value is None or not hasattr(value, "shape"):
        return None
    shape = tuple(int(n) if str(n).isdigit() else None for n in value.shape)
    return TensorInfo(node.name, shape, str(value.dtype).rpartition(".")[2], "NCHW" if len(shape) == 4 else "")


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
