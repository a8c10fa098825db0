"""ONNX files of opset 7 and later become networks. It needs the package `onnx`: `pip install 'edgelearn[formats]'`.

Sizes are compared with the bytes there are before an array is made.
Operators: https://onnx.ai/onnx/operators. Format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import erf, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Abs, LogSoftmax, Max, Mean, Op, Softmax, Sqrt, Square, Sum
from edgelearn.ops.pooling import Reduction

from . import operators, recurrent, shapes
from .builder import Builder, Operand, Value
from .canonical import (
    ForeignGraph,
    Operator,
    StoredIntegers,
    TensorInfo,
    gives_channels_first,
    takes_channels_first,
    with_batch_axes,
    with_branches,
)
from .formats import GraphReader, graph_format, register
from .forms import Both, Form, Only, forms, known

Array = np.ndarray  # a constant
AUTOMATIC = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}


def _padding(op: Operator, x: Any) -> Any:
    automatic = op.attributes.get("auto_pad", "NOTSET")
    if automatic in AUTOMATIC:
        return AUTOMATIC[automatic]
    if automatic != "NOTSET":
        raise UnsupportedError(f"auto_pad='{automatic}'.", "SAME_UPPER, SAME_LOWER, VALID or pads.")
    pads = [int(n) for n in op.attributes.get("pads") or [0] * 4]
    return ((0, 0), (pads[0], pads[1])) if len(pads) == 2 else ((pads[0], pads[2]), (pads[1], pads[3]))


def _pads(padding: Any) -> dict[str, Any]:
    (top, bottom), (left, right) = padding
    return {"pads": (top, left, bottom, right)}


def _transposed_padding(op: Operator, x: Any) -> Any:
    if "output_shape" in op.attributes or op.attributes.get("auto_pad") == "SAME_LOWER":
        raise UnsupportedError("A transposed convolution with output_shape, or SAME_LOWER.", "pads and output_padding.")
    return _padding(op, x)


def _window(op: Operator, x: Any) -> Any:
    """The size of a pooling's windows."""
    if {1, *(op.attributes.get("dilations") or ())} != {1} or len(op.outputs) > 1:
        raise UnsupportedError("Pooling with dilation or with indices.", "Plain windows.")
    return op.attributes["kernel_shape"]


def gemm(
    b: Builder, x: Operand, kernel: Operand, bias: Operand | None = None, *, turn_x: bool = False, turn_y: bool = False,
    alpha: float = 1.0, beta: float = 1.0,
) -> Operand:  # fmt: skip
    x, kernel = (shapes.transpose(b, v, (1, 0)) if turn else v for v, turn in ((x, turn_x), (kernel, turn_y)))
    kernel = kernel if alpha == 1 else operators.scale(b, kernel, alpha)
    if not isinstance(x, Value) or not isinstance(kernel, np.ndarray) or isinstance(bias, Value):
        y = operators.matmul(b, x, kernel)
        return y if bias is None else operators.add(b, y, operators.scale(b, bias, beta))
    if bias is None:
        return operators.dense(b, x, kernel)
    array = np.broadcast_to(bias if beta == 1 else bias * bias.dtype.type(beta), (1, kernel.shape[1]))[0]
    return operators.dense(b, x, kernel, array)


def group_normalization(
    b: Builder, x: Value, gamma: Array, beta: Array, *, groups: int, epsilon: float, channels: int
) -> Value:
    """Before opset 21 scale and bias have one number for each group."""
    if b.operator.version < 21:
        gamma, beta = (np.repeat(a, x.shape[channels] // groups) for a in (gamma, beta))
    return operators.group_normalization(b, x, gamma, beta, groups=groups, epsilon=epsilon, channels=channels)


def softmax(b: Builder, x: Operand, *, axis: int | None = None, op: Softmax | LogSoftmax) -> Operand:
    """Before opset 13 it is over all axes from `axis` on."""
    if b.operator.version >= 13:
        return operators.softmax(b, x, axis=-1 if axis is None else axis, op=op)
    axis, shape = (1 if axis is None else axis) % len(x.shape), x.shape
    flat = shapes.reshape(b, x, (*shape[:axis], -1)) if axis < len(shape) - 1 else x
    return shapes.reshape(b, operators.softmax(b, flat, op=op), shape)


def reduced(
    b: Builder, x: Operand, axes: Sequence[int] | None = None, *, kind: type[Reduction], keepdims: bool,
    kept: bool = False, before: Op | None = None, after: Op | None = None,
) -> Operand:  # fmt: skip
    """A sum, mean or maximum; `before` and `after`: ops of what is reduced, and of the result."""
    x = operators.activation(b, x, before) if before else x
    if axes or not kept:
        if not axes and isinstance(x, Value) and x.batch_axis is not None:
            axes = range(len(x.shape)) if x.batch > 1 else None
        x = operators.reduced(b, x, axes or None, kind=kind, keepdims=keepdims)
    return operators.activation(b, x, after) if after else x


def smallest(
    b: Builder, x: Operand, axes: Sequence[int] | None = None, *, keepdims: bool, kept: bool = False
) -> Operand:
    x = reduced(b, operators.neg(b, x), axes, kind=Max, keepdims=keepdims, kept=kept)
    return operators.neg(b, x)


def resize(
    b: Builder, x: Value, roi: Operand | None = None, scales: Operand | None = None,
    sizes: Sequence[int] | None = None, *,
    mode: str = "nearest", coordinates: str | None = None, rounding: str | None = None,
) -> Value:  # fmt: skip
    """Opset 10 has no regions: its second input are the scales."""
    op, scale = b.operator, None
    if op.version < 11 or op.kind == "Upsample":
        old = [1, 1, *(op.attributes.get(name, 1.0) for name in ("height_scale", "width_scale"))]
        scales = roi if roi is not None else np.array(op.attributes.get("scales", old))
    target = sizes
    if target is None:
        factors = [float(n) for n in known(scales, "scales")]
        target = [int(np.floor(n * factor)) for n, factor in zip(x.shape, factors, strict=True)]
        scale = (factors[-2], factors[-1])
    if x.rank != 4 or len(target) != 4 or target[1] != x.shape[1]:
        raise UnsupportedError(f"{x.shape} becomes {tuple(target)}.", "Other heights and widths.")
    old_names = ("asymmetric", "floor") if op.version < 11 else ("half_pixel", "round_prefer_floor")
    return operators.resize(
        b, x, target[2:], mode=mode, coordinates=coordinates or old_names[0], rounding=rounding or old_names[1],
        scale=scale, channels=1,
    )  # fmt: skip


def reshape(b: Builder, x: Operand, shape: Sequence[int], *, with_zeros: bool = False) -> Operand:
    return shapes.reshape(b, x, [x.shape[axis] if n == 0 and not with_zeros else n for axis, n in enumerate(shape)])


def _flattened(op: Operator, x: Any) -> tuple[int, int]:
    axis = op.attributes.get("axis", 1)
    return prod(x.shape[:axis]), prod(x.shape[axis:])


def _parts(op: Operator, x: Any) -> Sequence[int]:
    """Sizes of parts, as even as can be where the file has none."""
    n, count = x.shape[op.attributes.get("axis", 0)], op.attributes.get("num_outputs", len(op.outputs))
    size = -(-n // count)
    return op.attributes.get("split") or [size] * (n // size) + ([n % size] if n % size else [])


def slices(
    b: Builder, x: Operand, begin: Sequence[int], end: Sequence[int], axes: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Operand:  # fmt: skip
    steps = [1] * len(begin) if strides is None else strides
    for axis, first, last, by in zip(axes or range(len(begin)), begin, end, steps, strict=True):
        if by == 0:
            raise UnsupportedError("A slice with step 0.")
        stop = None if by < 0 and last < -x.shape[axis] else last  # in front of the first
        x = shapes.slice_axis(b, x, axis, first, stop, by)
    return x


def gather_rows(b: Builder, x: Operand, indices: Operand, *, batch_dims: int = 0) -> Operand:
    if batch_dims != 1 or indices.shape[-1] != 1:
        raise UnsupportedError(f"Elements of {x.shape} by {indices.shape}.", "Rows of each example.")
    return shapes.gather(b, x, shapes.squeeze(b, indices, [-1]), axis=1, batch_dims=1)


def constant(b: Builder) -> Operand:
    for name, kind in (("value", None), ("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if name in b.operator.attributes:
            return np.asarray(b.operator.attributes[name], kind)
    raise UnsupportedError("A constant that is no number.")


def shape_of(b: Builder, x: Operand, *, start: int = 0, end: int | None = None) -> Operand:
    return shapes.shape_of(b, x)[start:end]


def size_of(b: Builder, x: Operand) -> Operand:
    """The number of values."""
    return np.asarray(prod(x.shape), np.int64)


def dequantize(b: Builder, x: Operand, scale: Array, zero: Array | None = None, *, axis: int = 1) -> Operand:
    """Constants become numbers again; values already are."""
    if isinstance(x, Value):
        return x
    shape = [-1 if n == axis % max(x.ndim, 1) else 1 for n in range(x.ndim)] if scale.size > 1 else []
    offset = 0 if zero is None else zero.astype(np.int64).reshape(shape)
    return ((x.astype(np.int64) - offset) * scale.reshape(shape)).astype(np.float32)


def quantize(b: Builder, x: Operand, scale: Array, zero: Array | None = None) -> Operand:
    if isinstance(x, np.ndarray):
        raise UnsupportedError("A constant is quantized.", "Constants that are integers in the file.")
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    quantization = StoredIntegers(scale.reshape(-1), zero.reshape(-1), dtype=str(zero.dtype))
    return b.saturated(x, b.operator.outputs[0], quantization)


def image_scaler(b: Builder, x: Operand, *, scale: float = 1.0, bias: Any = (0.0,)) -> Operand:
    """Before opset 10: x * scale, and a bias for each channel."""
    return operators.add(b, operators.scale(b, x, scale), np.asarray(bias, np.float32).reshape(-1, 1, 1))


def _dtype(op: Operator, x: Any) -> str:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(op.attributes["to"]).name


def _to(dtype: str) -> dict[str, int]:
    import onnx

    return {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}


class _Form(Form):
    """Before opset 7 `axis` says which axis of x is the first of y."""

    def operands(self, b: Builder, inputs: Sequence[Operand | None]) -> dict[str, Any]:
        given, a = super().operands(b, inputs), b.operator.attributes
        if b.operator.version < 7 and a.get("broadcast") and "axis" in a and "y" in given:
            x, y = given["x"], given["y"]
            missing = len(x.shape) - a["axis"] % len(x.shape) - len(y.shape)
            given["y"] = shapes.reshape(b, y, (*y.shape, *(1,) * missing))
        return given


HANDLERS = forms(
    {
        "And": "logical_and",
        "BatchNormalization": ("batchnorm",
            {"training_mode": Only(0, "An export for inference; edgelearn trains it all the same."),
             "spatial": Only(1, "Statistics of channels.", "Statistics of each pixel (spatial=0).")},
        ),
        "Cast": "as_type",
        "Clip": ("clip", {"low": "min", "high": "max"}),
        "Concat": ("concatenate", {"axis": "axis=1"}),
        "Constant": constant,
        "ConstantOfShape": (
            "fill shape", {"value": lambda op, x: np.ravel(op.attributes.get("value", np.float32(0)))[:1]}
        ),
        "Conv": ("conv x kernel:OIHW bias", {"groups": "group=1"}),
        "ConvTranspose": ("transposed_conv x kernel:IOHW bias",
            {"groups": "group=1", "output_padding": "output_padding=0",
             "padding": Both(_transposed_padding, _pads)},
        ),
        "DepthToSpace": ("depth_to_space", {"pixels_first": lambda op, x: op.attributes.get("mode", "DCR") == "DCR"}
        ),
        "DequantizeLinear": dequantize,
        "Dropout": "identity",
        "Elu": ("ELU", {"alpha": "alpha=1.0"}),
        "Flatten": ("flatten x", shapes.reshape, {"shape": _flattened}),
        "GatherND": gather_rows,
        "Gelu": ("GELU", {"approximate": lambda op, x: op.attributes.get("approximate") == "tanh"}),
        "Gemm": ("dense", gemm),
        "GRU": (recurrent.onnx_layer, "x kernel recurrent_kernel bias lengths *states", {"layout": "layout=0"}),
        "GroupNormalization": (group_normalization, {"groups": "num_groups"}),
        "GreaterOrEqual": "greater_equal",
        "HardSigmoid": ("hard_sigmoid", {"slope": "alpha=0.2", "shift": "beta=0.5"}),
        "ImageScaler": image_scaler,
        "InstanceNormalization": "group_normalization",
        "LayerNormalization": ("layer_normalization",
            {"axes": lambda op, x: range(x.axis(op.attributes.get("axis", -1)), x.rank)},
        ),
        "LRN": (
            "local_response",
            {"size": "size", "alpha": "alpha=1e-4", "beta": "beta=0.75", "bias": "bias=1.0", "average": True},
        ),
        "LessOrEqual": "less_equal",
        "LeakyRelu": ("LeakyReLU", {"negative_slope": "alpha=0.01"}),
        "LogSoftmax": ("log_softmax x", softmax, {"op": LogSoftmax()}),
        "LpNormalization": ("unit_length", {"p": Only(2, "p=2.")}),
        "LSTM": (recurrent.onnx_layer, "x kernel recurrent_kernel bias lengths *states", {"layout": "layout=0"}),
        "Max": "maximum *",
        "Min": "minimum *",
        "Not": "logical_not",
        "Or": "maximum",
        "Pad": ("pad", {"sides": lambda op, x: op.attributes.get("pads", op.attributes.get("paddings"))}),
        "Pow": "power",
        "QuantizeLinear": quantize,
        "Range": "arange",
        "ReduceL1": (reduced, {"kind": Sum, "before": Abs()}),
        "ReduceL2": (reduced, {"kind": Sum, "before": Square(), "after": Sqrt()}),
        "ReduceMax": ("largest", reduced, {"kind": Max}),
        "ReduceMean": ("mean", reduced, {"kind": Mean}),
        "ReduceMin": smallest,
        "ReduceSum": ("total", reduced, {"kind": Sum}),
        "ReduceSumSquare": (reduced, {"kind": Sum, "before": Square()}),
        "Reshape": reshape,
        "Round": "rounded",
        "Resize": resize,
        "Selu": (
            "SELU", {"alpha": Only(1.6732632, "The default numbers."), "gamma": Only(1.0507010, "The default numbers.")}
        ),
        "Shape": shape_of,
        "Size": size_of,
        "Slice": (
            "strided_slice x begin end axes strides", slices, {"begin": "starts", "end": "ends", "strides": "steps"}
        ),
        "Softmax": ("softmax x", softmax, {"op": Softmax()}),
        "Split": ("split x sizes", {"sizes": _parts}),
        "Sum": "add *",
        "Swish": ("SiLU", {"alpha": Only(1, "x * sigmoid(x).")}),
        "Transpose": ("transpose x", {"order": "perm"}),
        "Upsample": resize,
    },
    same="Abs Add AveragePool Ceil Div Equal Exp Expand Floor Gather GlobalAveragePool GlobalMaxPool Greater "
         "HardSwish Identity Less Log MatMul MaxPool Mish Mul Neg PRelu Reciprocal Relu Sigmoid Softplus Softsign "
         "SpaceToDepth Sqrt Squeeze Sub Tanh Unsqueeze Where",
    form=_Form, channels=1, strides="strides=1", dilation="dilations", padding=Both(_padding, _pads),
    size=Both(_window, lambda size: {"kernel_shape": size}),
    keepdims="keepdims=1", kept="noop_with_empty_axes", epsilon="epsilon=1e-5", momentum="momentum=0.9",
    ceil="ceil_mode", counts_padding="count_include_pad", block="blocksize", dtype=Both(_dtype, _to),
    with_zeros="allowzero", turn_x="transA", turn_y="transB",
    coordinates="coordinate_transformation_mode", rounding="nearest_mode",
)  # fmt: skip

NEAREST = {
    "Loop": "An export with fixed shapes.",
    "Scan": "An export with fixed shapes.",
    "NonMaxSuppression": "Cut the model before it: outputs=(...).",
    "TopK": "Cut the model before it: outputs=(...).",
    "ArgMax": "Cut the model before it: outputs=(...).",
    "QLinearConv": "The QDQ form: QuantizeLinear and DequantizeLinear around Conv.",
}


_SAMPLES = np.linspace(-3, 3, 13)
_FUNCTIONS = {"Add": np.add, "Div": np.divide, "Erf": np.vectorize(erf), "Mul": np.multiply}


def fuse_gelu(graph: ForeignGraph) -> ForeignGraph:
    """Return the graph with x * 0.5 * (1 + erf(x / sqrt(2))), multiplied in any order, as Gelu: exporters before opset
    20 spell it out. A chain of sums and products after Erf is one if it has its values."""
    makers = {name: operator for operator in graph.operators for name in operator.outputs}
    readers, changes = graph.sole_readers(), dict[str, Operator | None]()
    expected = _SAMPLES / 2 * (1 + _FUNCTIONS["Erf"](_SAMPLES * sqrt(0.5)))

    def values(name: str, x: str, depth: int = 6) -> Any:
        """The values of a tensor where `x` has those of the samples; None if it isn't a short function of `x`."""
        maker = makers.get(name)
        found: Any = graph.constants.get(name)
        if found is None and maker is not None and maker.kind == "Constant":
            found = maker.attributes.get("value", maker.attributes.get("value_float"))
        if name == x:
            return _SAMPLES
        if found is not None:
            return np.ravel(found)[0] if np.size(found) == 1 else None
        if maker is None or maker.kind not in _FUNCTIONS or not depth:
            return None
        operands = [values(read, x, depth - 1) for read in maker.inputs]
        return None if any(operand is None for operand in operands) else _FUNCTIONS[maker.kind](*operands)

    for begin in (operator for operator in graph.operators if operator.kind == "Erf"):
        x = next((name for name in makers.get(begin.inputs[0], begin).inputs if values(name, "") is None), "")
        operator, chain = begin, []
        while operator.outputs[0] in readers:
            chain.append(operator.outputs[0])
            operator = readers[chain[-1]]
            found = values(operator.outputs[0], x)
            if found is None or np.allclose(found, expected, rtol=1e-4, atol=1e-6):
                gelu = Operator("Gelu", begin.name, (x,), operator.outputs, {}, begin.version)
                changes |= {} if found is None else dict.fromkeys(chain) | {operator.outputs[0]: gelu}
                break
    return graph.changed(changes)


BRANCHES = ("then_branch", "else_branch")
RECURRENT = ("GRU", "LSTM", "RNN")
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
    operators = _operators(graph, constants, version, versions, path)
    texts = {entry.key: entry.value for entry in model.metadata_props}
    preprocessing, names = _json(texts, "preprocessing", dict), _json(texts, "class_names", list)
    given = [value for value in graph.input if value.name not in constants]
    read = {name for operator in operators for name in operator.inputs} | {value.name for value in graph.output}
    unread = [value.name for value in given if value.name not in read]  # constants that tf2onnx folded, for example
    if unread and len(unread) < len(given):
        texts["inputs that nothing reads"] = ", ".join(unread)
        given = [value for value in given if value.name in read]
    every = tuple(with_branches(operators))
    recurrent = [o for o in every if o.kind in RECURRENT and not o.attributes.get("layout")]
    second = {name for operator in recurrent for name in operator.inputs[:1] + operator.inputs[5:7]}
    inputs = with_batch_axes([_input(value, every) for value in given], _dimensions(given), second)
    return ForeignGraph(
        "ONNX", graph.name or path.stem, inputs, tuple(value.name for value in graph.output), operators, constants,
        {value.name: _info(value) for value in graph.value_info} | _outputs(graph.output, every, inputs),
        preprocessing or {}, tuple(map(str, names or ())),
        {key: text for key, text in texts.items() if key not in ("preprocessing", "class_names")},
    )  # fmt: skip


def _operators(
    graph: Any, constants: dict[str, np.ndarray], version: int, versions: dict[str, int], path: Path
) -> tuple[Operator, ...]:  # fmt: skip
    """The operators of a graph with these constants."""
    found = []
    for number, node in enumerate(graph.node):
        operator = _operator(node, number, version, versions, path)
        if operator.kind == "If":
            graphs = {a.name: a.g for a in node.attribute}
            both = tuple(_branch(graphs[name], constants, version, versions, path) for name in BRANCHES)
            reads = tuple(name for branch in both for name in _captured(branch))
            operator = replace(operator, inputs=(*operator.inputs, *reads), branches=both)
        found.append(operator)
    return tuple(found)


def _branch(
    graph: Any, around: dict[str, np.ndarray], version: int, versions: dict[str, int], path: Path
) -> ForeignGraph:  # fmt: skip
    """A graph inside an operator; `around`: constants of those around it."""
    own = {tensor.name: _array(tensor, path) for tensor in graph.initializer}
    every = around | own if own else around
    operators = _operators(graph, every, version, versions, path)
    tensors = {value.name: _info(value) for value in graph.value_info}
    names = tuple(value.name for value in graph.output)
    return replace(fuse_gelu(ForeignGraph("ONNX", graph.name, (), names, operators, every, tensors)), constants=own)


def _captured(branch: ForeignGraph) -> list[str]:
    """Tensors of the graph around a branch, once for each time that the branch reads one."""
    own = {"", *branch.constants, *(name for operator in branch.operators for name in operator.outputs)}
    reads = [*(name for operator in branch.operators for name in operator.inputs), *branch.outputs]
    return [name for name in reads if name not in own]


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


def _dimensions(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The axes of tensors: a size, or the name of one, "" for one without a name."""
    return [tuple(d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim) for value in values]


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
