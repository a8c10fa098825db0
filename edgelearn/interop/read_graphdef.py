"""Frozen TensorFlow graphs (a GraphDef in its binary form) become trainable networks, without TensorFlow.

Operators: https://www.tensorflow.org/api_docs/python/tf/raw_ops
Messages: tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape,types}.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.graph.rewrites import ancestors
from edgelearn.ops import LocalResponseNormalization, Max, Mean, ReLU, Sum

from . import operators, shapes, tensorflow
from .builder import Builder
from .canonical import ForeignGraph, Operator, TensorInfo, fuse_dilated
from .tensorflow import (
    Operand,
    add_n,
    binary,
    computed,
    constant_only,
    expand_dims,
    filled_with,
    integers,
    known,
    padded,
    power,
    same,
    shape_of,
    slices,
    split_v,
    transpose,
    unary,
)
from .wire import Message


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
    return operators.conv(b, x, array, dilation=_pixels(op, "dilations"), groups=groups, **_window(op))


def depthwise(b: Builder, op: Operator, x: Operand, kernel: Operand) -> Operand:
    dilation = _pixels(op, "dilations")
    return tensorflow.depthwise(b, computed(x), known(kernel, "kernel"), None, dilation=dilation, **_window(op))


def local_response(b: Builder, op: Operator, x: Operand) -> Operand:
    numbers = [op.attributes.get(name, default) for name, default in (("alpha", 1.0), ("beta", 0.5), ("bias", 1.0))]
    size = 2 * max(op.attributes.get("depth_radius", 5), 0) + 1
    return operators.local_response(b, computed(x), LocalResponseNormalization(size, *numbers))


def transposed_conv(b: Builder, op: Operator, sizes: Operand, kernel: Operand, x: Operand) -> Operand:
    """The kernel is (height, width, filters, channels); `sizes` is the shape of the output."""
    y = operators.transposed_conv(b, computed(x), known(kernel, "kernel").transpose(0, 1, 3, 2), **_window(op))
    if isinstance(sizes, np.ndarray) and integers(sizes)[1:] != list(y.shape[1:]):
        raise UnsupportedError(f"An output of {tuple(integers(sizes))}; expected {y.shape}.", "Keras's sizes.")
    return y


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    a = op.attributes
    x = shapes.turn(b, x) if a.get("transpose_a", False) or a.get("adj_x", False) else x
    y = shapes.turn(b, y) if a.get("transpose_b", False) or a.get("adj_y", False) else y
    return operators.matmul(b, x, y)


def bias_add(b: Builder, op: Operator, x: Operand, bias: Operand) -> Operand:
    array = known(bias, "bias")
    if _channels(op) == 1 and len(x.shape) == 4:
        array = array.reshape(-1, 1, 1)
    return operators.add(b, x, array)


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
    return (operators.batchnorm(b, computed(x), *arrays, epsilon=epsilon, channels=_channels(op)),)


def average_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.average_pool(b, computed(x), _pixels(op, "ksize"), **_window(op))


def max_pool(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.max_pool(b, computed(x), _pixels(op, "ksize"), **_window(op))


def _reduction(kind: type):
    def reduce(b: Builder, op: Operator, x: Operand, axes: Operand) -> Operand:
        keepdims = bool(op.attributes.get("keep_dims", False))
        return operators.reduce(b, x, kind, integers(axes, "axes"), keepdims=keepdims)

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
    return operators.activation(b, x, "LeakyReLU", negative_slope=op.attributes.get("alpha", 0.2))


def cast(b: Builder, op: Operator, x: Operand) -> Operand:
    """Values stay as they are; constants get their type."""
    kind = op.attributes.get("DstT", "float32")
    return x.astype(kind) if isinstance(x, np.ndarray) and kind in ("float32", "int32", "int64", "bool") else x


def relu(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.activation(b, x, ReLU())


def relu6(b: Builder, op: Operator, x: Operand) -> Operand:
    return operators.clip(b, x, 0, 6)


def fused(b: Builder, op: Operator, x: Operand, kernel: Operand, *arguments: Operand) -> Operand:
    """_FusedConv2D and its like, which TensorFlow's optimizer writes: a linear operator, and a list of others."""
    first = {"_FusedConv2D": conv, "_FusedDepthwiseConv2dNative": depthwise, "_FusedMatMul": matmul}[op.kind]
    y, rest = first(b, op, x, kernel), list(arguments)
    for name in op.attributes.get("fused_ops") or []:
        if name == "BiasAdd":
            y = bias_add(b, op, y, rest.pop(0))
        elif name == "FusedBatchNorm":
            arrays = [known(array, "statistics") for array in rest[:4]]
            y = operators.batchnorm(b, computed(y), *arrays, epsilon=op.attributes.get("epsilon", 1e-4),
                                 channels=_channels(op))  # fmt: skip
            rest = rest[4:]
        elif name in ("Relu", "Relu6", "Elu", "Sigmoid", "Tanh"):
            y = HANDLERS[name](b, op, y)
        else:
            raise UnsupportedError(f"Fused with '{name}'.", "BiasAdd, FusedBatchNorm and activations.")
    return y


HANDLERS: dict[str, Any] = {
    "Abs": unary("Abs"),
    "Add": binary(operators.add),
    "AddN": add_n,
    "AddV2": binary(operators.add),
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
    "Fill": filled_with,
    "FusedBatchNorm": batchnorm,
    "FusedBatchNormV2": batchnorm,
    "FusedBatchNormV3": batchnorm,
    "GatherV2": gather,
    "Greater": binary(lambda b, x, y: operators.compare(b, "greater", x, y)),
    "GreaterEqual": binary(lambda b, x, y: operators.compare(b, "greater_equal", x, y)),
    "Identity": same,
    "IdentityN": lambda b, op, *inputs: inputs,
    "LeakyRelu": leaky_relu,
    "Less": binary(lambda b, x, y: operators.compare(b, "less", x, y)),
    "LessEqual": binary(lambda b, x, y: operators.compare(b, "less_equal", x, y)),
    "Log": unary("Log"),
    "MatMul": matmul,
    "Max": _reduction(Max),
    "MaxPool": max_pool,
    "LRN": local_response,
    "LogSoftmax": lambda b, op, x: operators.log_softmax(b, x, -1),
    "Maximum": lambda b, op, x, y: operators.extreme(b, x, y, True),
    "Mean": _reduction(Mean),
    "Minimum": lambda b, op, x, y: operators.extreme(b, x, y, False),
    "MirrorPad": mirror_pad,
    "Mul": binary(operators.multiply),
    "Neg": lambda b, op, x: operators.scale(b, x, -1.0),
    "Pack": pack,
    "Pad": padded,
    "PadV2": padded,
    "PlaceholderWithDefault": same,
    "Pow": power,
    "PreventGradient": same,
    "Prod": constant_only(lambda x, axes: np.prod(x)),
    "Range": constant_only(tensorflow.arange),
    "RealDiv": binary(operators.divide),
    "Relu": relu,
    "Relu6": relu6,
    "Reshape": reshape,
    "ResizeBilinear": _resize("bilinear"),
    "ResizeNearestNeighbor": _resize("nearest"),
    "Rsqrt": unary("Rsqrt"),
    "SelectV2": lambda b, op, condition, x, y: operators.where(b, condition, x, y),
    "Selu": unary("SELU"),
    "Shape": shape_of,
    "Sigmoid": unary("Sigmoid"),
    "Slice": slices,
    "Softmax": lambda b, op, x: operators.softmax(b, x, -1),
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
    "Sub": binary(operators.subtract),
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
        reader.add(Node.of(root.message(value)))
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
class Node:
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
    def of(cls, message: Message) -> Node:
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

    def add(self, node: Node) -> None:
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
        """The nodes, each behind those that it reads."""
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
