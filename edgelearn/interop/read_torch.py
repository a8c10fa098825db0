"""PyTorch modules become networks by torch.export: ATen operators, with the arguments of their schemas.

It needs PyTorch. In-place forms of operators are read as the plain ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import ELU, SELU, Attention, Constant, Rescaling, Sum

from . import operators, recurrent, shapes
from .builder import Builder, Operand, Value
from .canonical import (
    ForeignGraph,
    Operator,
    TensorInfo,
    gives_channels_first,
    takes_channels_first,
    with_batch_axes,
)
from .forms import Only, forms, integers, pair

Array = np.ndarray  # a constant
LOWEST = np.asarray(np.finfo(np.float32).min)
LOW = -1e4  # what is added to the scores of keys that aren't seen, or less
PADS = {"pad": "constant", "reflection": "reflect", "replication": "edge", "replicate": "edge"}


def _padding(op: Operator, x: Any) -> Any:
    padding = op.attributes["padding"] or 0
    if isinstance(padding, str):
        return "same_upper" if padding == "same" else padding
    top, left = pair(padding, "padding", op, x, 0)
    return (top, top), (left, left)


def _window(op: Operator, x: Any) -> Any:
    """The size of a pooling's windows, or of its result."""
    if set(np.ravel(op.attributes.get("dilation", 1))) != {1} or op.attributes.get("divisor_override"):
        raise UnsupportedError("Pooling with dilation or divisor_override.", "Plain windows, the number of pixels.")
    return op.attributes.get("kernel_size", op.attributes.get("output_size"))


def attention(
    b: Builder, query: Operand, key: Operand, value: Operand, mask: Operand | None = None, *,
    scale: float | None = None, causal: bool = False,
) -> Operand:  # fmt: skip
    """softmax(query keyᵀ / sqrt(channels)) value of each head. A mask that says the same for all queries and heads, or
    besides that none sees the keys after its own, is part of the layer; others are added to stored scores."""
    read = [query, key, value]
    fits = all(isinstance(x, Value) and x.rank in (3, 4) and x.batch_axis == 0 for x in read)
    fits = fits and key.shape == value.shape
    of_keys: Operand | None = None
    if isinstance(mask, np.ndarray):
        mask = _seen(_for_all_examples(mask) if mask.ndim == len(query.shape) else mask)
        found = _of_keys(mask, query.shape[-2], key.shape[-2])
        if found is not None and (fits or (found[0].all() and not found[1])):
            of_keys, causal, mask = (None if found[0].all() else found[0]), causal or found[1], None
    elif mask is not None:
        mask = _truth_of(b, mask)
        truth, before = _without_later(b, mask, query.shape[-2], key.shape[-2])
        rows = (n for axis, n in enumerate(truth.shape[:-1]) if axis != truth.batch_axis)
        alike = truth.batch_axis is None or truth.rank == len(query.shape)
        if fits and alike and operators.is_truth(b, truth.layer) and all(n == 1 for n in rows):
            of_keys, causal, mask = truth, causal or before, None
    if fits and mask is None:
        return _attention(b, read, scale, causal, of_keys)
    if causal or key.shape[:-2] != query.shape[:-2]:
        raise UnsupportedError(
            "Causal attention, or of grouped keys, of constants or with a mask for each query.",
            "Values (batch, heads, steps, channels), and a mask of keys.",
        )
    return _by_scores(b, query, key, value, mask, scale or query.shape[-1] ** -0.5)


def _by_scores(b: Builder, query: Operand, key: Operand, value: Operand, mask: Any, scale: float) -> Operand:
    """Attention whose scores are stored. `mask`: added to them, or of bool, False for what isn't seen."""
    scores = operators.scale(b, operators.matmul(b, query, key, turn_y=True), scale)
    if isinstance(mask, Value) and operators.is_truth(b, mask.layer):
        weights = operators.softmax(b, operators.where(b, mask, scores, LOWEST))
        return operators.matmul(b, operators.mul(b, weights, mask), value)  # 0 for queries that see nothing
    if isinstance(mask, np.ndarray) and mask.dtype == bool:
        mask = np.where(mask, 0, LOWEST)
        mask = b.constant(mask, scores) if isinstance(scores, Value) else mask
    if mask is not None:
        scores = operators.add(b, scores, mask)
    return operators.matmul(b, operators.softmax(b, scores), value)


def _for_all_examples(mask: Array) -> Array:
    """The mask for one example. Raises UnsupportedError if examples have others."""
    if (mask != mask[:1]).any():
        raise UnsupportedError("A constant mask for each example of the batch.", "A mask as an input of the module.")
    return mask[:1]


def _seen(mask: Array) -> Array:
    """Return as bool what a mask lets through; the mask, if it adds other numbers than 0 and very low ones. Raises
    UnsupportedError if a query sees nothing."""
    seen = mask if mask.dtype == bool else mask == 0
    if mask.dtype != bool and not (seen | (mask <= LOW)).all():
        return mask
    if not seen.any(-1).all():
        raise UnsupportedError("Attention with a query that sees no key.", "A mask that leaves each query a key.")
    return seen


def _of_keys(seen: Array, queries: int, keys: int) -> tuple[Array, bool] | None:
    """(keys that a mask of all heads lets through, True if queries besides see no keys after their own); None for
    another mask."""
    if seen.dtype != bool:
        return None
    rows = np.broadcast_to(seen, (*seen.shape[:-2], queries, keys)).reshape(-1, queries, keys)
    row, behind = np.asarray(rows.any((0, 1))), np.tri(queries, keys, dtype=bool)
    for causal, expected in ((False, row), (True, row & behind)):
        if (rows == expected).all():
            return row, causal
    return None


def _without_later(b: Builder, mask: Value, queries: int, keys: int) -> tuple[Value, bool]:
    """(what a computed mask says besides that no query sees keys after its own, True if it says that)"""
    whole, value, constant = b.masked.get(mask.layer, (None, mask, np.ones((), bool)))
    if whole is None or (whole.sizes, whole.axes) != (mask.sizes, mask.axes) or constant.ndim != 2:
        return mask, False
    found = _of_keys(constant, queries, keys)
    return (value, True) if found is not None and found[0].all() and found[1] else (mask, False)


def _truth_of(b: Builder, mask: Value) -> Value:
    """The 0 and 1 that a computed mask is made of, if it is 0 for 1 and a very low number for 0; else the mask.
    Without axes that it was repeated along."""
    if mask.layer in b.repeated:
        repeated, source = b.repeated[mask.layer]
        mask = source if (mask.sizes, mask.axes) == (repeated.sizes, repeated.axes) else mask
    layer = b.maker(mask)
    if layer and isinstance(layer.op, Rescaling) and layer.op.offset <= LOW and layer.op.scale == -layer.op.offset:
        under = replace(mask, layer=layer.inputs[0])
        return under if operators.is_truth(b, under.layer) else mask
    return mask


def _attention(b: Builder, read: Sequence[Any], scale: float | None, causal: bool, mask: Any) -> Operand:
    """The layer, by tiles: it reads heads side by side in the channels. `mask`: of the keys, None for all."""
    heads, key_heads = ((x.shape[1] if x.rank == 4 else 1) for x in read[:2])
    layers = []
    for x in read:
        by_steps: Any = x
        if x.rank == 4:
            by_steps = shapes.transpose(b, x, (0, 2, 1, 3))
            by_steps = shapes.reshape(b, by_steps, (*by_steps.shape[:2], -1))
        layers.append(b.laid_out(by_steps, (1, 2)))
    if isinstance(mask, Value):
        layers.append(b.laid_out(mask, (mask.rank - 1,)))
    elif mask is not None:
        name = f"{b.operator.name}_mask"
        weights = {"value": mask.astype(np.float32)}
        layers.append(b.add(Constant(mask.shape), layers[1], weights=weights, frozen=("value",), name=name))
    layer = b.add(Attention(heads, key_heads, causal, scale), *layers)
    y: Operand = recurrent.result(b, read[0], layer)
    if read[0].rank == 4:
        y = shapes.transpose(b, shapes.reshape(b, y, (*y.shape[:2], heads, -1)), (0, 2, 1, 3))
    return y


def bitwise_and(b: Builder, x: Operand, y: Operand) -> Operand:
    return operators.logical_and(b, *_truths(b, x, y))


def bitwise_not(b: Builder, x: Operand) -> Operand:
    return operators.logical_not(b, *_truths(b, x))


def _truths(b: Builder, *operands: Operand) -> tuple[Operand, ...]:
    """The operands. Raises UnsupportedError for numbers, whose bits are others than those of bool."""
    if any(x.dtype != bool if isinstance(x, np.ndarray) else not operators.is_truth(b, x.layer) for x in operands):
        raise UnsupportedError("Bits of numbers.", "Comparisons and inputs of bool.")
    return operands


def _dtype(op: Operator, x: Any) -> str:
    return str(op.attributes["dtype"]).rpartition(".")[2]


def vector_norm(b: Builder, x: Operand, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> Operand:
    """The root of the sum of squares"""
    squares = operators.power(b, x, 2.0)
    total = operators.reduced(b, squares, axes or range(len(x.shape)), kind=Sum, keepdims=keepdims)
    return operators.power(b, total, 0.5)


def normalization(
    b: Builder, x: Value, gamma: Array | None = None, beta: Array | None = None, mean: Array | None = None,
    variance: Array | None = None, *, own: bool = False, epsilon: float, momentum: float = 0.99, channels: int,
) -> Value:  # fmt: skip
    """By running statistics, or, of instances, by their own."""
    if own or (b.operator.kind == "instance_norm" and (mean is None or variance is None)):
        return operators.group_normalization(b, x, gamma, beta, epsilon=epsilon, channels=channels)
    if mean is None or variance is None:
        raise UnsupportedError("BatchNorm without running statistics.", "track_running_stats=True.")
    return operators.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, momentum=momentum, channels=channels)


def scaled(b: Builder, x: Operand, y: Operand, *, alpha: Any = 1) -> Operand:
    """x plus or minus alpha * y"""
    function = operators.add if b.operator.kind == "add" else operators.sub
    return function(b, x, y if alpha == 1 else operators.scale(b, y, alpha))


def elu(b: Builder, x: Operand, *, alpha: float, scale: float, input_scale: float) -> Operand:
    return operators.activation(b, x, ELU(alpha) if scale == 1 == input_scale else SELU())


def prelu(b: Builder, x: Value, slope: Array) -> Value:
    return operators.prelu(b, x, slope.reshape(-1, *(1,) * (x.rank - 2)))


def upsample(
    b: Builder, x: Value, *, size: Sequence[int] | None = None, align_corners: bool | None = None, factors: Any
) -> Value:
    size = size or [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    how = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
    if align_corners is not None:
        how = {"mode": "bilinear", "coordinates": "align_corners" if align_corners else "half_pixel"}
    return operators.resize(b, x, size, scale=factors if len(factors) == 2 else None, channels=1, **how)


def expand_as(b: Builder, x: Operand, like: Operand) -> Operand:
    return shapes.expand(b, x, like.shape)


def split(b: Builder, x: Operand, *, sizes: Any, axis: int) -> tuple[Operand, ...]:
    if isinstance(sizes, int):
        return shapes.pieces(b, x, size=sizes, axis=axis)
    return shapes.split(b, x, sizes, axis=axis)


def _expanded(op: Operator, x: Any) -> list[int]:
    """-1 keeps a size"""
    sizes = op.attributes["size"]
    own = (1,) * (len(sizes) - len(x.shape)) + tuple(x.shape)
    return [n if size == -1 else size for n, size in zip(own, sizes, strict=True)]


def _swapped(op: Operator, x: Any) -> list[int]:
    order = list(range(len(x.shape)))
    first, second = op.attributes["dim0"], op.attributes["dim1"]
    order[first], order[second] = order[second], order[first]
    return order


def _unflattened(op: Operator, x: Any) -> tuple[int, ...]:
    axis = op.attributes["dim"] % len(x.shape)
    return (*x.shape[:axis], *op.attributes["sizes"], *x.shape[axis + 1 :])


def _squeezed(op: Operator, x: Any) -> list[int] | None:
    axes = op.attributes.get("dim")
    return None if axes is None else [axis for axis in integers(axes) if x.shape[axis] == 1]


def _sides(op: Operator, x: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis; PyTorch has the last axis first, and those in front may be missing."""
    pads = op.attributes.get("pad", op.attributes.get("padding"))
    sides = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    return [(0, 0)] * (len(x.shape) - len(sides)) + sides


def _mode(op: Operator, x: Any) -> str:
    given = op.attributes.get("mode") or op.kind.partition("_")[0]
    return PADS.get(given, given)


def _factors(op: Operator, x: Any) -> tuple[float, ...]:
    a = op.attributes
    return tuple(float(f) for f in a.get("scale_factors") or (a.get("scales_h"), a.get("scales_w")) if f)


_PAD = ("pad x", {"sides": _sides, "mode": _mode})
_CLIP = ("clip", {"low": "min", "high": "max"})
_CONV = "conv x kernel:OIHW bias"
HANDLERS = forms(
    {
        "__and": bitwise_and,
        "adaptive_avg_pool1d": "adaptive_average_pool",
        "adaptive_avg_pool2d": "adaptive_average_pool",
        "add": scaled,
        "addmm": "dense bias x kernel",
        "alias": "identity",
        "amax": "largest",
        "avg_pool1d": "average_pool",
        "avg_pool2d": "average_pool",
        "batch_norm": normalization,
        "bitwise_and": bitwise_and,
        "bitwise_not": bitwise_not,
        "bmm": "matmul",
        "cat": "concatenate",
        "chunk": ("pieces x", {"size": lambda op, x: -(-x.shape[op.attributes["dim"]] // op.attributes["chunks"])}),
        "clamp": _CLIP,
        "clamp_max": _CLIP,
        "clamp_min": _CLIP,
        "clone": "identity",
        "constant_pad_nd": _PAD,
        "contiguous": "identity",
        "conv1d": _CONV,
        "conv2d": _CONV,
        "conv_transpose2d": "transposed_conv x kernel:IOHW bias",
        "detach": "identity",
        "div": ("div", {"rounding_mode": Only(None, "", "Division that rounds.")}),
        "dropout": ("dropout", {"channels": None}),
        "elu": elu,
        "embedding": ("gather", {"axis": 0}),
        "eq": "equal",
        "expand": ("expand x", {"shape": _expanded}),
        "expand_as": expand_as,
        "feature_dropout": ("dropout", {"channels": 1}),
        "flatten": ("flatten", {"start": "start_dim", "end": "end_dim"}),
        "ge": "greater_equal",
        "gelu": ("GELU", {"approximate": lambda op, x: op.attributes["approximate"] == "tanh"}),
        "group_norm": ("group_normalization", {"groups": "num_groups"}),
        "gru": (recurrent.torch_layer, "x *rest"),
        "gt": "greater",
        "hardtanh": ("clip", {"low": "min_val", "high": "max_val"}),
        "instance_norm": (normalization, {"own": "use_input_stats"}),
        "layer_norm": ("layer_normalization", {"axes": lambda op, x: range(-len(op.attributes["normalized_shape"]), 0)}
        ),
        "le": "less_equal",
        "masked_fill": ("where y condition x", {"x": "value"}),
        "index_select": "gather",
        "linalg_vector_norm": (vector_norm, {"ord": Only(2, "The root of the sum of squares.")}),
        "linear": "dense x kernel:OI bias",
        "lstm": (recurrent.torch_layer, "x *rest"),
        "lt": "less",
        "max_pool1d": "max_pool",
        "max_pool2d": "max_pool",
        "mm": "matmul",
        "narrow": ("slice_axis x", {"end": lambda op, x: op.attributes["start"] + op.attributes["length"]}),
        "ne": "not_equal",
        "pad": _PAD,
        "permute": ("transpose", {"order": "dims"}),
        "pixel_shuffle": ("depth_to_space", {"pixels_first": False}),
        "pow": "power",
        "prelu": prelu,
        "reflection_pad1d": _PAD,
        "reflection_pad2d": _PAD,
        "replication_pad1d": _PAD,
        "replication_pad2d": _PAD,
        "rsub": (scaled, "y x", {"x": "other"}),
        "scaled_dot_product_attention": (
            attention, {"causal": "is_causal"}
        ),
        "select": ("gather x", {"indices": lambda op, x: np.asarray(op.attributes["index"])}),
        "slice": "slice_axis x",
        "split": (split, {"sizes": "split_size"}),
        "split_with_sizes": ("split x", {"sizes": "split_sizes"}),
        "squeeze": ("squeeze x", {"axes": _squeezed}),
        "sub": scaled,
        "sum": "total",
        "t": "transpose x",
        "to": "as_type x",
        "transpose": ("transpose x", {"order": _swapped}),
        "unflatten": ("reshape x", {"shape": _unflattened}),
        "upsample_bilinear2d": (upsample, {"size": "output_size"}),
        "upsample_nearest2d": (upsample, {"size": "output_size"}),
        "view": "reshape",
    },
    same="_log_softmax _softmax abs exp hardsigmoid hardswish leaky_relu log log_softmax logical_and logical_not "
         "matmul mean mish mul neg reciprocal relu relu6 reshape rsqrt sigmoid silu softmax softplus sqrt square tanh "
         "unsqueeze where",
    channels=1, strides=lambda op, x: op.attributes["stride"] or None, padding=_padding,
    size=_window, ceil="ceil_mode", counts_padding="count_include_pad", axis="dim",
    axes=lambda op, x: None if op.attributes.get("dim") == () else op.attributes.get("dim"), keepdims="keepdim",
    epsilon="eps", momentum=lambda op, x: 1 - op.attributes["momentum"], rate="p", y="other",
    factors=_factors, dtype=_dtype, block="upscale_factor",
    shape=lambda op, x: op.attributes.get("size") or op.attributes.get("shape"),
)  # fmt: skip

NEAREST: dict[str, str] = {}


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


STATES = {"gru": 1, "lstm": 2}  # tensors of the state


def graph_of_module(module: Any, example: Any, name: str = "") -> ForeignGraph:
    """The graph of a module and its weights.

    Arguments:
    - `module`: an nn.Module; it is left as it is.
    - `example`: an input, or a tuple of them, with the batch as first axis; a tensor of 4 axes is (n, channels, height,
      width), one of 3 axes that convolutions read (n, channels, length), a state of LSTM or GRU (layers, n, units).
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
        with torch.no_grad(), warnings.catch_warnings():
            # PyTorch's recurrent layers keep a list of their weights, which nobody changes here.
            warnings.filterwarnings("ignore", ".*were assigned during export", UserWarning)
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
    computed = {  # tensors that no input and no parameter changes
        key: tensors[path] for key, path in stored.items()
        if key not in signature.inputs_to_parameters and path not in signature.buffers_to_mutate.values()
    }  # fmt: skip
    given: list[Any] = []
    outputs: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in stored:
            given.append(_info(node))
        elif node.op == "call_function" and _is_constant(node, computed):
            found = computed[node.name] = _computed(node, computed)
            if hasattr(found, "detach"):
                constants[node.name] = found.detach().cpu().numpy()
        elif node.op == "call_function":
            reader.read(node)
        elif node.op == "get_attr":
            computed[node.name] = program.constants[node.target]
            constants[node.name] = program.constants[node.target].detach().cpu().numpy()
        elif node.op == "output":
            values = node.args[0] if isinstance(node.args[0], tuple | list) else node.args
            ends = (value.name for value in values if hasattr(value, "name"))
            outputs = [reader.names.get(end) or end for end in ends]
    changed = set(signature.buffers_to_mutate)
    outputs = [output for output in outputs if output not in changed]
    if not given or any(info is None for info in given):
        raise FormatError(f"{name} needs tensors as inputs.")
    known = {info.name: info for info in map(_info, program.graph.nodes) if info is not None}
    operators = tuple(reader.operators)
    given = [_as_sequence(info, takes_channels_first(info.name, operators, SEQUENCES, PASSING)) for info in given]
    inputs = with_batch_axes(given, [info.shape or () for info in given], _with_batch_second(operators))
    begins = {info.name for info in inputs if info.layout}
    for end in set(outputs) & known.keys():
        known[end] = _as_sequence(known[end], gives_channels_first(end, operators, SEQUENCES, PASSING, begins))
    return ForeignGraph(
        "PyTorch", name, inputs, tuple(outputs), operators, constants | reader.constants, known
    )  # fmt: skip


def _with_batch_second(operators: Sequence[Operator]) -> set[str]:
    """Tensors that recurrent layers read with the batch as second axis: their states, and without `batch_first` their
    sequences."""
    found = set[str]()
    for operator in operators:
        if count := STATES.get(operator.kind):
            found.update(operator.inputs[bool(operator.attributes.get("batch_first")) : 1 + count])
    return found


def _is_constant(node: Any, known: Mapping[str, Any]) -> bool:
    """True for an operator that reads neither inputs nor parameters, such as positions: PyTorch computes it."""
    import torch

    schema = getattr(node.target, "_schema", None)
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return not drawn and not (schema and schema.is_mutable) and all(each.name in known for each in node.all_input_nodes)


def _computed(node: Any, known: Mapping[str, Any]) -> Any:
    import torch

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: known[each.name])
    with torch.no_grad():
        return node.target(*args, **kwargs)


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
        if kind in ("getitem", "_assert_tensor_metadata"):
            return  # an output of the operator before, or a check of types
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
