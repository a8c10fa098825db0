"""Frozen TensorFlow graphs (a GraphDef in its binary form) become trainable networks, without TensorFlow.

Operators: https://www.tensorflow.org/api_docs/python/tf/raw_ops
Messages: tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape,types}.proto
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.graph.rewrites import ancestors

from . import operators
from .builder import Builder, Operand
from .canonical import ForeignGraph, Operator, TensorInfo, fuse_dilated
from .forms import Only, forms
from .wire import Message

Array = np.ndarray  # a constant


def _channels(op: Operator, x: Any = None) -> int:
    """The axis of the channels."""
    return 1 if op.attributes.get("data_format") == "NCHW" else -1


def _pixels(name: str) -> Callable[[Operator, Any], tuple[int, int]]:
    """The numbers for height and width in an attribute with one for each axis; default 1."""

    def read(op: Operator, x: Any) -> tuple[int, int]:
        numbers = op.attributes.get(name) or [1, 1, 1, 1]
        if len(numbers) != 4 or min(numbers) < 1:
            raise FormatError(f"{op.kind} '{op.name}' has {name}={numbers}: the file is damaged.")
        return (numbers[2], numbers[3]) if _channels(op) == 1 else (numbers[1], numbers[2])

    return read


def _padding(op: Operator, x: Any) -> Any:
    padding = op.attributes.get("padding", "")
    if padding != "EXPLICIT":
        return padding.lower()
    sides = op.attributes.get("explicit_paddings") or []
    if len(sides) != 8:
        raise FormatError(f"{op.kind} '{op.name}' has explicit_paddings={sides}: the file is damaged.")
    first = 4 if _channels(op) == 1 else 2
    return tuple(sides[first : first + 2]), tuple(sides[first + 2 : first + 4])


def bias_add(b: Builder, x: Operand, bias: Array, *, channels: int) -> Operand:
    return operators.add(b, x, bias.reshape(-1, 1, 1) if channels == 1 and len(x.shape) == 4 else bias)


_BATCHNORM = ("batchnorm",
    {"is_training": Only(
        False, "A graph for inference.",
        "It takes its statistics from the batch: the graph was frozen while training.", default=True,
    )},
)  # fmt: skip


def cast(b: Builder, x: Operand, *, dtype: str = "float32") -> Operand:
    """Values stay as they are; constants get their type."""
    return x.astype(dtype) if isinstance(x, np.ndarray) and dtype in ("float32", "int32", "int64", "bool") else x


def fused(b: Builder, op: Operator, x: Operand, kernel: Operand, *arguments: Operand) -> Operand:
    """_FusedConv2D and its like, which TensorFlow's optimizer writes: a linear operator, and a list of others."""
    first = {"_FusedConv2D": "Conv2D", "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative", "_FusedMatMul": "MatMul"}
    y, rest = HANDLERS[first[op.kind]](b, op, x, kernel), list(arguments)
    for name in op.attributes.get("fused_ops") or []:
        if name not in ("BiasAdd", "FusedBatchNorm", "Relu", "Relu6", "Elu", "Sigmoid", "Tanh"):
            raise UnsupportedError(f"Fused with '{name}'.", "BiasAdd, FusedBatchNorm and activations.")
        count = {"BiasAdd": 1, "FusedBatchNorm": 4}.get(name, 0)
        settings = {**op.attributes, "is_training": False}
        y, rest = HANDLERS[name](b, replace(op, attributes=settings), y, *rest[:count]), rest[count:]
    return y


def identities(b: Builder, values: Sequence[Operand]) -> tuple[Operand, ...]:
    return tuple(values)


HANDLERS: dict[str, Any] = forms(
    {
        "AddN": "add *",
        "AddV2": "add",
        "AvgPool": "average_pool",
        "BatchMatMul": "matmul",
        "BatchMatMulV2": "matmul",
        "BiasAdd": bias_add,
        "Cast": cast,
        "BroadcastTo": "expand",
        "CheckNumerics": "identity",
        "Concat": "concatenate axis *values",
        "ConcatV2": "concatenate *values axis",
        "Conv2D": "conv x kernel:HWIO",
        "Conv2DBackpropInput": "transposed_conv_to shape kernel:HWOI x",
        "DepthToSpace": ("depth_to_space", {"data_format": Only("NHWC", "NHWC.")}),
        "DepthwiseConv2dNative": "depthwise x kernel",
        "ExpandDims": "unsqueeze",
        "FakeQuantWithMinMaxArgs": ("fake_quant x", {"low": "min=-6.0", "high": "max=6.0"}),
        "FakeQuantWithMinMaxVars": "fake_quant",
        "FakeQuantWithMinMaxVarsPerChannel": "fake_quant",
        "FusedBatchNorm": _BATCHNORM,
        "FusedBatchNormV2": _BATCHNORM,
        "FusedBatchNormV3": _BATCHNORM,
        "GatherV2": "gather x indices axis",
        "IdentityN": identities,
        "Max": "largest",
        "LRN": ("local_response",
            {"size": lambda op, x: 2 * max(op.attributes.get("depth_radius", 5), 0) + 1, "alpha": "alpha=1.0",
             "beta": "beta=0.5", "bias": "bias=1.0"},
        ),
        "MirrorPad": ("pad x sides", {"mode": lambda op, x: op.attributes.get("mode", "REFLECT").lower()}),
        "PadV2": "pad",
        "PlaceholderWithDefault": "identity",
        "Pow": "power",
        "PreventGradient": "identity",
        "Prod": "product",
        "Range": "arange",
        "RealDiv": "div",
        "ResizeNearestNeighbor": "resize_nearest",
        "Round": "rounded",
        "SelectV2": "where",
        "Shape": "shape_of",
        "Slice": "part",
        "SpaceToDepth": ("space_to_depth", {"data_format": Only("NHWC", "NHWC.")}),
        "Split": "halves axis x",
        "SplitV": "split x sizes axis",
        "Squeeze": ("squeeze x", {"axes": lambda op, x: op.attributes.get("squeeze_dims") or None}),
        "StopGradient": "identity",
        "Sum": "total",
    },
    same="Abs Add Elu Exp Fill Greater GreaterEqual Identity LeakyRelu Less LessEqual Log LogSoftmax MatMul "
         "Maximum MaxPool Mean Minimum Mul Neg Pack Pad Relu Relu6 Reshape ResizeBilinear Rsqrt Selu Sigmoid "
         "Softmax Softplus Softsign Sqrt Square SquaredDifference StridedSlice Sub Tanh Transpose Unpack",
    strides=_pixels("strides"), dilation=_pixels("dilations"), size=_pixels("ksize"), padding=_padding,
    channels=_channels, keepdims="keep_dims", block="block_size=1",
    turn_x=lambda op, x: op.attributes.get("transpose_a", op.attributes.get("adj_x")),
    turn_y=lambda op, x: op.attributes.get("transpose_b", op.attributes.get("adj_y")),
    bits="num_bits=8", narrow="narrow_range", count=lambda op, x: len(op.outputs), half_pixel="half_pixel_centers",
    negative_slope="alpha=0.2", epsilon="epsilon=1e-4", dtype="DstT",
    masks=lambda op, x: op.attributes,
) | {"_FusedConv2D": fused, "_FusedDepthwiseConv2dNative": fused, "_FusedMatMul": fused}  # fmt: skip

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


NODE = 1  # field of GraphDef
TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
# Fields of TensorProto that hold values one by one, and their types as they are written
VALUES = {5: ("float32", "<f4"), 6: ("float64", "<f8")}
INTEGERS = {7: "int32", 10: "int64", 11: "bool", 13: "float16", 16: "uint32", 17: "uint64"}
MOST_VALUES = 1 << 26  # of a constant that a file repeats one number for
SOURCES = {"Placeholder", "PlaceholderV2"}
NUMBERS = {"float32", "float16", "float64", "bfloat16", "uint8"}  # of inputs that a network can have
LOOPS = {"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}
NO_RESULT = {"NoOp", "Assert"}
NOT_FROZEN = {"VarHandleOp", "Variable", "VariableV2", "ReadVariableOp"}


def read(path: Path) -> ForeignGraph:
    """Read the nodes and constants of a frozen graph; its inputs are its placeholders, its outputs what no node reads.
    Raises FormatError naming the file."""
    if not path.is_file():
        raise FormatError(f"There is no file {path}. Give the path of a frozen TensorFlow graph.")
    return parse(path.read_bytes(), path)


def parse(data: bytes, path: Path) -> ForeignGraph:
    """Read a GraphDef from the bytes of the file `path`. Raises FormatError naming the file."""
    root = Message(memoryview(data), str(path))
    (nodes,) = root.fields(NODE)
    if not nodes:
        raise FormatError(f"{path} is not a frozen TensorFlow graph (GraphDef): it has no node.")
    reader = GraphDefReader(path, max(1 << 24, 8 * len(data)))
    for value in nodes:
        reader.add(NodeDef.of(root.message(value)))
    return reader.graph()


def _dilated(conv: Operator, dilation: tuple[int, int], sides: Any) -> dict[str, Any] | None:
    """Attributes of a convolution of NHWC, strides 1 and no padding, with this dilation and padding."""
    a = conv.attributes
    ones = [number for name in ("strides", "dilations") for number in a.get(name) or [1]]
    if a.get("padding") != "VALID" or a.get("data_format", "NHWC") != "NHWC" or max(ones) > 1:
        return None
    (top, bottom), (left, right) = sides
    explicit = [0, 0, top, bottom, left, right, 0, 0]
    return {"dilations": [1, *dilation, 1], "padding": "EXPLICIT", "explicit_paddings": explicit}


@dataclass(frozen=True)
class NodeDef:
    """A node of a graph or a function, as the file writes it.

    Arguments:
    - `name`, `kind`: its own, and its operator's.
    - `inputs`: what it reads, as "NODE", "NODE:1" or "^NODE", in functions also "ARGUMENT" and "NODE:RESULT:0".
    - `message`: the NodeDef.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    message: Message

    @classmethod
    def of(cls, message: Message) -> NodeDef:
        names, kinds, inputs = message.fields(1, 2, 3)
        name, kind = (message.text(texts[-1]) if texts else "" for texts in (names, kinds))
        return cls(name, kind, tuple(message.text(value) for value in inputs), message)

    def attributes(self, where: str = "") -> dict[str, Message]:
        """The AttrValues by name. `where`: what errors call them (default: the file)."""
        return self.message.mapping(5, where)


class GraphDefReader:
    """Turns nodes into operators and constants.

    Arguments:
    - `path`: the file, for errors.
    - `room`: bytes that constants may take.
    """

    def __init__(self, path: Path, room: int) -> None:
        self.path, self.room = path, room
        self.nodes: dict[str, Operator] = {}
        self.constants: dict[str, np.ndarray] = {}

    def add(self, node: NodeDef) -> None:
        """Add a node, whose inputs are written as those of a graph."""
        where = f"{self.path}: node '{node.name:.200}'"
        if not node.name or not node.kind or node.name in self.nodes:
            raise FormatError(f"{where} has the kind '{node.kind:.60}' and no name of its own: the file is damaged.")
        found = {key: self._attribute(value) for key, value in node.attributes(where).items() if key[:1] != "_"}
        read = tuple(_tensor(name) for name in node.inputs)
        count = len(read) if node.kind == "IdentityN" else _outputs(node.kind, found)
        made = tuple(node.name if n == 0 else f"{node.name}:{n}" for n in range(count))
        self.nodes[node.name] = Operator(node.kind, node.name, tuple(r for r in read if r), made, found)
        if node.kind == "Const" and isinstance(found.get("value"), np.ndarray):
            self.constants[node.name] = found["value"]

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """Add a constant whose values are in another file."""
        self.nodes[name] = Operator("Const", name, (), (name,))
        self.constants[name] = array

    def graph(self, outputs: tuple[str, ...] = ()) -> ForeignGraph:
        """The graph of what was added. `outputs`: names of tensors (default: what no node reads)."""
        order = self._ordered()
        unfrozen = [node for node in order if node.kind in NOT_FROZEN]
        if unfrozen:
            raise FormatError(
                f"{self.path} is not frozen: '{unfrozen[0].name}' ({unfrozen[0].kind}) reads a variable whose value is "
                f"in another file. Freeze the graph, or give the folder of the SavedModel."
            )
        operators = tuple(node for node in order if node.kind not in SOURCES | NO_RESULT | {"Const"})
        read = {name for node in operators for name in node.inputs}
        ends = [node for node in operators if read.isdisjoint(node.outputs)]
        infos = self._infos(order)
        inputs = tuple(infos[node.name] for node in order if node.kind in SOURCES)
        obvious = inputs and ends and all(info.dtype in NUMBERS and info.shape for info in inputs)
        hint = "" if obvious else self._candidates(inputs, ends, infos)
        metadata: dict[str, str] = {}
        plain = outputs or (obvious and len(inputs) == 1 and all(node.kind in HANDLERS for node in ends))
        outputs = outputs or tuple(node.outputs[0] for node in ends)
        if not plain and (pair := self._pair(order, infos)):
            begin, end = pair
            obvious, inputs, outputs, hint = True, (begin,), (end.outputs[0],), ""
            metadata["part that was read"] = (
                f"From '{begin.name}', the only placeholder that the only {end.kind} needs, to that, '{end.name}'. For "
                f"other parts give inputs=(…) and outputs=(…)."
            )
        graph = ForeignGraph(
            "TensorFlow GraphDef", self.path.stem, inputs if obvious else (), outputs, operators, self.constants, infos,
            metadata=metadata, hint=hint, notes=tuple(metadata.values()),
        )  # fmt: skip
        return fuse_dilated(graph, dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), _dilated))

    def _pair(self, order: list[Operator], infos: Mapping[str, TensorInfo]) -> tuple[TensorInfo, Operator] | None:
        """The placeholder and the softmax between which the network obviously lies: the only softmax, and the only
        placeholder that it needs. None if there are more, or none."""
        softmaxes = [node for node in order if node.kind in ("Softmax", "LogSoftmax")]
        if len(softmaxes) != 1:
            return None
        makers = {output: node for node in order for output in node.outputs}
        needed = ancestors(softmaxes[0].inputs, lambda name: makers[name].inputs)
        sources = [node for node in order if node.kind in SOURCES and node.name in needed]
        infos_of = [infos[node.name] for node in sources]
        if len(infos_of) != 1 or infos_of[0].dtype == "string" or not infos_of[0].shape or len(infos_of[0].shape) < 2:
            return None
        return infos_of[0], softmaxes[0]

    def _candidates(self, inputs: tuple[TensorInfo, ...], ends: list[Operator], infos: Mapping[str, TensorInfo]) -> str:
        """Tensors between which a network may lie."""
        known = [f"'{name}' {info.shape}" for name, info in infos.items()
                 if name in self.nodes and self.nodes[name].kind == "Reshape"]  # fmt: skip
        sources = [f"'{info.name}' ({info.dtype})" for info in inputs]
        outputs = [f"'{node.name}' ({node.kind})" for node in ends]
        return (
            f"Inputs may be {', '.join([*known[:8], *sources[:8]]) or 'none'}; "
            f"outputs may be {', '.join(outputs[:8]) or 'none'}."
        )

    def _ordered(self) -> list[Operator]:
        """The nodes, each after those that it reads."""
        makers = {output: node.name for node in self.nodes.values() for output in node.outputs}
        for node in self.nodes.values():
            for name in node.inputs:
                if name not in makers:
                    raise FormatError(
                        f"{self.path}: node '{node.name:.200}' reads '{name:.200}', which the file doesn't have. It is "
                        f"damaged."
                    )
        needs = {node.name: [makers[name] for name in node.inputs] for node in self.nodes.values()}
        try:
            return [self.nodes[name] for name in TopologicalSorter(needs).static_order()]
        except CycleError as error:
            names = [str(name) for name in error.args[1]]
            circle = ", ".join(names[:5])
            if any(self.nodes[name].kind in LOOPS for name in names):
                frames = {str(node.attributes["frame_name"]) for node in self.nodes.values() if node.kind == "Enter"}
                loop = next(iter(sorted(frames)), circle)
                raise FormatError(
                    f"{self.path} has a loop over time (while), '{loop:.200}': recurrent networks aren't read yet. "
                    f"Nearest: convolutions over time (DS-CNN, BC-ResNet), or a graph whose loop is unrolled."
                ) from None
            raise FormatError(
                f"{self.path}: nodes read each other in a circle ({circle}), which no graph does. It is damaged."
            ) from None

    def _infos(self, order: list[Operator]) -> dict[str, TensorInfo]:
        """Shapes that the file tells: of placeholders, of constants, and of what is reshaped."""
        layout = "NCHW" if any(node.attributes.get("data_format") == "NCHW" for node in order) else "NHWC"
        infos = {name: TensorInfo(name, array.shape, str(array.dtype)) for name, array in self.constants.items()}
        for node in order:
            shape, dtype = node.attributes.get("shape"), node.attributes.get("dtype", "float32")
            if node.kind == "Reshape" and node.inputs[1:] and node.inputs[1] in self.constants:
                shape, dtype = tuple(self.constants[node.inputs[1]].reshape(-1).tolist()), "float32"
            elif node.kind not in SOURCES:
                continue
            sizes = tuple(None if n < 0 else int(n) for n in shape) if isinstance(shape, tuple) else None
            infos[node.name] = TensorInfo(node.name, sizes, dtype, layout if sizes and len(sizes) == 4 else "")
        return infos

    def _attribute(self, value: Message) -> Any:
        """An AttrValue as a Python value; None for functions."""
        for field, _, content in value:
            if field == 1:
                return self._list(value.message(content))
            if field == 2:
                return _string(bytes(value.bytes(content)))
            if field == 3:
                return value.integer(content)
            if field == 4:
                return value.number(content)
            if field == 5:
                return bool(content)
            if field == 6:
                return TYPES.get(value.integer(content), "other")
            if field == 7:
                return read_shape(value.message(content))
            if field == 8:
                return self._array(value.message(content))
        return None

    def _list(self, value: Message) -> list[Any]:
        strings, integers, floats, flags = value.fields(2, 3, 4, 5)
        if strings:
            return [_string(bytes(value.bytes(s))) for s in strings]
        if floats:
            return value.floats(floats).tolist()
        return value.integers(integers or flags)

    def _array(self, tensor: Message) -> np.ndarray | str:
        """A TensorProto; a text if it holds texts."""
        types, shapes, content = tensor.fields(1, 2, 4)
        kind = TYPES.get(tensor.integer(types[-1]) if types else 0, "")
        shape = read_shape(tensor.message(shapes[-1])) if shapes else ()
        if kind == "string":
            return "texts"
        if not kind or not isinstance(shape, tuple) or min(shape, default=1) < 0 or len(shape) > 8:
            raise tensor.damaged(f"a tensor of type '{kind}' and shape {shape}")
        count = prod(shape)
        self.room -= 4 * count
        if (count > MOST_VALUES and not content) or self.room < 0:
            raise tensor.damaged(f"a tensor of shape {shape} and those before it are larger than the file can hold")
        data = bytes(tensor.bytes(content[-1])) if content else b""
        if data:
            stored = np.dtype("<u2" if kind == "bfloat16" else kind).newbyteorder("<")
            if len(data) != count * stored.itemsize:
                raise tensor.damaged(f"a tensor of {kind} and shape {shape} has {len(data):,} bytes")
            return plain(np.frombuffer(data, stored), kind).reshape(shape)
        return _repeated(_values(tensor, kind), count, tensor).reshape(shape)


def _values(tensor: Message, kind: str) -> np.ndarray:
    """The values that a tensor lists one by one."""
    found = np.zeros(0, np.float32)
    for field, (_, stored) in VALUES.items():
        (values,) = tensor.fields(field)
        if values:
            found = tensor.floats(values, stored)
    for field in INTEGERS:
        (values,) = tensor.fields(field)
        if values:
            numbers = np.array(tensor.integers(values), np.int64)
            found = plain(numbers.astype(np.uint16), kind) if field == 13 else numbers
    return found if kind == "bfloat16" else found.astype("float32" if kind == "float16" else kind)


def plain(values: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of 16 bits as float32."""
    if kind == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    if kind == "float16":
        return values.view(np.float16).astype(np.float32)
    return values


def _repeated(values: np.ndarray, count: int, tensor: Message) -> np.ndarray:
    """TensorFlow leaves out values at the end that are equal to the one before."""
    if len(values) > count:
        raise tensor.damaged(f"a tensor of {count:,} values has {len(values):,}")
    if len(values) == count:
        return values
    last = values[-1] if len(values) else values.dtype.type(0)
    return np.concatenate([values, np.full(count - len(values), last, values.dtype)])


def read_shape(message: Message) -> tuple[int, ...] | None:
    """A TensorShapeProto; -1 for open sizes, None if the rank is open."""
    dimensions, unknown = message.fields(2, 3)
    if unknown and unknown[-1]:
        return None
    sizes = []
    for value in dimensions:
        (size,) = message.message(value).fields(1)
        sizes.append(message.integer(size[-1]) if size else 0)
    return tuple(sizes)


def _tensor(name: str) -> str:
    """Name of a tensor; the first output has its node's. Empty for a control input, which only orders nodes."""
    return "" if name.startswith("^") else name.removesuffix(":0")


def _outputs(kind: str, attributes: Mapping[str, Any]) -> int:
    """The number of outputs of a node that handlers may return."""
    if kind in ("Split", "SplitV"):
        return min(max(int(attributes.get("num_split") or 1), 1), 4096)
    if kind == "Unpack":
        return min(max(int(attributes.get("num") or 1), 1), 4096)
    return 6 if kind.startswith("FusedBatchNorm") else 3


def _string(data: bytes) -> str:
    return data.decode("utf-8", "replace")
