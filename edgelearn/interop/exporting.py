"""Networks as inference graphs: the operations that runtimes such as LiteRT and ONNX Runtime have, in the order they
run.

An operation has the name and the arguments of its meaning in `operators` or `shapes`, or of its op's class, so that a
writer finds it in the table of names by which its format is read. BatchNormalization is folded, dropout left out, and
tensors are quantized as in training, from its range statistics. Activations have a batch axis and channels last.

An op that computes each value by itself is written as the format's own operator, if it has one, else by its formula.
`HANDLERS` has one function for each other op, which gets the graph, the layer and its inputs, and returns the layer's
output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from math import inf, prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.graph.rewrites import Stage, fuse
from edgelearn.ops import (
    GRU,
    LSTM,
    AdaptiveAveragePooling2D,
    Add,
    Attention,
    AveragePooling2D,
    BatchNormalization,
    Bias,
    BroadcastTo,
    Concatenate,
    Constant,
    Conv2D,
    Conv2DTranspose,
    Coupling,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    Greater,
    GroupNormalization,
    HardSigmoid,
    LayerNormalization,
    Less,
    LocalResponseNormalization,
    LogSoftmax,
    MatMul,
    Max,
    MaxPooling2D,
    Mean,
    Op,
    Pad,
    PadChannels,
    PReLU,
    ReLU,
    Rescaling,
    Reshape,
    Resize,
    ReverseEmbedding,
    RMSNormalization,
    RotaryEmbedding,
    Scale,
    Sigmoid,
    SiLU,
    Slice,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Square,
    Stream,
    SubSpectralNormalization,
    Sum,
    Take,
    Tanh,
    Transpose,
    UpSampling2D,
    Where,
    ZeroPadding2D,
)
from edgelearn.ops.formats import Format
from edgelearn.ops.quantize import FIELDS
from edgelearn.ops.resize import ROUNDINGS
from edgelearn.ops.sequences import Conv1D, DepthwiseConv1D, OverSteps
from edgelearn.ops.window import Window

from .weights import Weights, formula_of

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Quantization:
    """Integers q of 8 bits stand for scale * (q - zero).

    Arguments:
    - `scale`: float32, one number, or one for each index of `axis`.
    - `zero`: the integer that stands for 0.
    - `axis`: axis of a constant that has a scale for each index; None for one scale.
    """

    scale: np.ndarray
    zero: int = 0
    axis: int | None = None

    def same(self, other: Quantization) -> bool:
        return self.zero == other.zero and np.array_equal(self.scale, other.scale)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """The int8 that stand for `values`."""
        return np.clip(np.rint(values / self._scales(values)) + self.zero, -128, 127).astype(np.int8)

    def decode(self, integers: np.ndarray) -> np.ndarray:
        return ((integers.astype(np.float32) - np.float32(self.zero)) * self._scales(integers)).astype(np.float32)

    def _scales(self, values: np.ndarray) -> np.ndarray:
        if self.axis is None:
            return self.scale
        return self.scale.reshape([-1 if axis == self.axis else 1 for axis in range(values.ndim)])


@dataclass(frozen=True, eq=False)
class GraphTensor:
    """A tensor of the graph.

    Arguments:
    - `name`: unique in the graph.
    - `shape`: for activations with a batch of 1 in front.
    - `array`: values of a constant; None for activations.
    - `quantization`: of a constant whose values are those of integers.
    - `dtype`: NumPy's name of its type (default "float32").
    """

    name: str
    shape: Shape
    array: np.ndarray | None = None
    quantization: Quantization | None = None
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation.

    Arguments:
    - `kind`: the name of its meaning: a function of `operators` or `shapes`, or an op's class.
    - `inputs`: the operands of that, in its order. `output`: the value that it writes.
    - `attributes`: its settings, by argument of the meaning; axes are those of channels last.
    """

    kind: str
    inputs: tuple[GraphTensor, ...]
    output: GraphTensor
    attributes: Mapping[str, Any] = field(default_factory=dict)


class InferenceGraph:
    """Operations in order, between `inputs` and `outputs`, values by name. Each method appends an operation and returns
    its output; shapes have a batch axis, which is 1 here and any number when the graph runs.

    Besides meanings there are the kinds "Erf" and "quantize" (to the values that int8 stand for: quantization). Linear
    operations end in an activation (None, "ReLU" or "relu6"). Padding is in pixels; transposed_conv is the gradient of
    a convolution with that padding.

    Arguments:
    - `name`: the network's name.
    - `has`: whether the format has an operator for an op of a single value (default: for none).
    """

    def __init__(self, name: str, has: Callable[[Op], bool] = lambda op: False) -> None:
        self.name, self.has = name, has
        self.inputs: dict[str, GraphTensor] = {}
        self.outputs: dict[str, GraphTensor] = {}
        self.operations: list[Operation] = []
        self.fixed: dict[GraphTensor, np.ndarray] = {}  # values that are the same for all examples
        self._names: set[str] = set()
        self.layer = name  # that is being written; names its values

    def input(self, name: str, shape: Sequence[int]) -> GraphTensor:
        self.inputs[name] = GraphTensor(self._unique(name), (1, *shape))
        return self.inputs[name]

    def constant(self, array: Any, name: str = "constant", quantization: Quantization | None = None) -> GraphTensor:
        array = np.asarray(array)
        return GraphTensor(self._unique(f"{self.layer}/{name}"), array.shape, array, quantization, str(array.dtype))

    def add(
        self, kind: str, inputs: Sequence[GraphTensor | None], shape: Sequence[int], /, *, to: str = "float32",
        **attributes: Any,
    ) -> GraphTensor:  # fmt: skip
        """An operation of any kind, whose output has this shape and type; inputs that are None are left out."""
        output = GraphTensor(self._unique(f"{self.layer}/{kind}"), tuple(map(int, shape)), dtype=to)
        self.operations.append(Operation(kind, tuple(x for x in inputs if x is not None), output, attributes))
        return output

    def unary(self, kind: str, x: GraphTensor, **attributes: Any) -> GraphTensor:
        """An operation of one input, whose shape stays."""
        return self.add(kind, [x], x.shape, **attributes)

    def binary(self, kind: str, x: GraphTensor, y: GraphTensor) -> GraphTensor:
        """One of add, sub, mul, div, maximum, minimum, with sizes of 1 broadcast."""
        return self.add(kind, [x, y], np.broadcast_shapes(x.shape, y.shape))

    def scalar(self, kind: str, x: GraphTensor, value: Any) -> GraphTensor:
        """`binary` with float32 values."""
        return self.binary(kind, x, self.constant(np.asarray(value, np.float32)))

    def cast(self, x: GraphTensor, dtype: str) -> GraphTensor:
        """The values as another type; 0 is False."""
        return self.add("as_type", [x], x.shape, to=dtype, dtype=dtype)

    def whole(self, x: GraphTensor) -> GraphTensor:
        """Numbers of rows, rounded."""
        return self.cast(self.unary("rounded", x), "int32")

    def pad(
        self, x: GraphTensor, sides: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant"
    ) -> GraphTensor:
        """Pad each axis, the batch's among them, by (before, after). `mode`: constant, reflect or symmetric."""
        if not any(map(any, sides)):
            return x
        shape = tuple(n + sum(both) for n, both in zip(x.shape, sides, strict=True))
        return self.add("pad", [x], shape, sides=tuple(map(tuple, sides)), value=value, mode=mode)

    def reduce(self, kind: str, x: GraphTensor, axes: Sequence[int], keep: bool = True) -> GraphTensor:
        """One of mean, sum, max over axes from 1 on."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keep or axis not in axes)
        kind = {"mean": "mean", "sum": "total", "max": "largest"}[kind]
        return self.add(kind, [x], shape, axes=tuple(axes), keepdims=keep)

    def reshape(self, x: GraphTensor, shape: Sequence[int]) -> GraphTensor:
        """Change the shape of each example, in C order."""
        shape = (1, *shape)
        assert prod(shape) == prod(x.shape)
        return x if shape == x.shape else self.add("reshape", [x], shape, shape=(-1, *shape[1:]))

    def transpose(self, x: GraphTensor, order: Sequence[int]) -> GraphTensor:
        """Reorder the axes; the batch's stays the first."""
        return self.add("transpose", [x], [x.shape[axis] for axis in order], order=tuple(order))

    def slice(
        self, x: GraphTensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None
    ) -> GraphTensor:
        """`sizes` elements of each axis but the batch's, from `starts` on, every `steps`-th (default 1)."""
        steps = tuple(steps or (1,) * len(sizes))
        last = [start + (size - 1) * step for start, size, step in zip(starts, sizes, steps, strict=True)]
        ends = [end + (1 if step > 0 else -1) for end, step in zip(last, steps, strict=True)]
        ends = tuple(end if end >= 0 else -n - 1 for end, n in zip(ends, x.shape[1:], strict=True))  # before the first
        axes = tuple(range(1, len(x.shape)))
        return self.add("strided_slice", [x], (1, *sizes), begin=tuple(starts), end=ends, axes=axes, strides=steps)

    def convolution(
        self, kind: str, inputs: Sequence[GraphTensor | None], window: Window, groups: int, activation: str | None
    ) -> GraphTensor:
        """conv or depthwise, with kernels (height, width, input channels / groups, filters)."""
        _, kernel, *_ = inputs
        assert kernel is not None
        return self.add(
            kind, inputs, (1, *window.output, kernel.shape[-1]), strides=window.strides, padding=window.padding,
            dilation=window.dilation, groups=groups, activation=activation,
        )  # fmt: skip

    def leave_out_unread(self) -> None:
        """Remove operations on which no output depends."""
        read = set(self.outputs.values())
        for operation in reversed(self.operations):
            if operation.output in read:
                read.update(operation.inputs)
        self.operations = [operation for operation in self.operations if operation.output in read]

    def quantize(self, x: GraphTensor, quantization: Quantization) -> GraphTensor:
        """Round to the values that int8 stand for."""
        return self.add("quantize", [x], x.shape, quantization=quantization)

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique


@dataclass(frozen=True)
class ExportedLayer:
    """A layer that a handler writes.

    Arguments:
    - `name`, `op`, `shape`: its name, its op and its output's shape.
    - `shapes`: shapes of its inputs, without the batch.
    - `weights`: its arrays by role, float64.
    - `owner`: the layer whose weights it uses: itself, or one that it shares them with.
    """

    name: str
    op: Any
    shape: Shape
    shapes: list[Shape]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    owner: str = ""

    @staticmethod
    def of(network: Network, node: Node) -> ExportedLayer:
        """The layer without its weights."""
        return ExportedLayer(node.name, node.op, node.shape, network.input_shapes(node.inputs), owner=node.owner)

    @property
    def window(self) -> Window:
        return self.op.window(*self.shapes)

    @property
    def as_image(self) -> ExportedLayer:
        """The layer of an op on sequences as one on images of height 1."""
        shape = (1, *self.shape) if len(self.shape) > 1 else self.shape
        weights = {role: array[None] if role == "kernel" else array for role, array in self.weights.items()}
        return replace(self, op=self.op.plane, shape=shape, shapes=[(1, *s) for s in self.shapes], weights=weights)


def _operator(kind: str, swapped: bool = False, to: str = "float32") -> Callable[[Expression, Any], Expression]:
    def operate(x: Expression, other: Any) -> Expression:
        operands = [x, other if isinstance(other, Expression) else x.number(other)]
        return x.joined(kind, *(reversed(operands) if swapped else operands), to=to)

    return operate


@dataclass(frozen=True, eq=False)
class Expression:
    """A value that Python's operators, and the functions of `Formulas`, compute with."""

    graph: InferenceGraph
    value: GraphTensor

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    maximum, minimum = _operator("maximum"), _operator("minimum")
    __gt__, __lt__ = _operator("greater", to="bool"), _operator("less", to="bool")

    def joined(self, kind: str, *operands: Expression, to: str = "float32") -> Expression:
        """An operation with sizes of 1 broadcast."""
        values = [x.value for x in operands]
        shape = np.broadcast_shapes(*(x.shape for x in values))
        return Expression(self.graph, self.graph.add(kind, values, shape, to=to))

    def number(self, number: float) -> Expression:
        return Expression(self.graph, self.graph.constant(np.float32(number), "number"))

    def unary(self, kind: str) -> Expression:
        return Expression(self.graph, self.graph.unary(kind, self.value))

    def __pow__(self, power: int) -> Expression:
        return self if power == 1 else self * self ** (power - 1)

    def __neg__(self) -> Expression:
        return self.unary("neg")


class Formulas:
    """The namespace for formulas of ops (see edgelearn.ops.formula) whose functions add operations to a graph."""

    square = staticmethod(lambda x: x * x)
    expm1 = staticmethod(lambda x: x.unary("Exp") - 1.0)
    log1p = staticmethod(lambda x: (x + 1.0).unary("Log"))
    maximum, minimum = staticmethod(Expression.maximum), staticmethod(Expression.minimum)
    zeros_like, ones_like = (staticmethod(lambda x, n=n: x.number(n)) for n in (0, 1))
    where = staticmethod(lambda condition, x, y: x.joined("where", condition, x, y))

    def __getattr__(self, name: str) -> Callable[[Expression], Expression]:
        return lambda x: x.unary(name.capitalize())

    def clip(self, x: Expression, low: float, high: float) -> Expression:
        if (low, high) in ((0, inf), (0, 6)):
            return x.unary("relu6" if high == 6 else "ReLU")
        x = x if low == -inf else x.maximum(low)
        return x if high == inf else x.minimum(high)


def _aligned(graph: InferenceGraph, layer: ExportedLayer, inputs: Sequence[GraphTensor]) -> list[GraphTensor]:
    """Operands of lower rank get sizes of 1 after the batch's axis."""
    return [graph.reshape(x, (1,) * (1 + len(layer.shape) - len(x.shape)) + x.shape[1:]) for x in inputs]


def _formula(graph: InferenceGraph, layer: ExportedLayer, *inputs: GraphTensor) -> GraphTensor:
    if graph.has(layer.op):
        settings = {each.name: getattr(layer.op, each.name) for each in fields(layer.op)}
        return graph.unary(type(layer.op).__name__, inputs[0], **settings)
    weights = [graph.constant(a.astype(np.float32), role) for role, a in layer.weights.items()]
    operands = [Expression(graph, x) for x in (*_aligned(graph, layer, inputs), *weights)]
    return layer.op.formula(Formulas(), *operands).value


def _compared(kind: str) -> Callable[..., GraphTensor]:
    def handle(graph: InferenceGraph, layer: ExportedLayer, *inputs: GraphTensor) -> GraphTensor:
        truth = graph.add(kind, _aligned(graph, layer, inputs), (1, *layer.shape), to="bool")
        return graph.cast(truth, "float32")

    return handle


def _where(graph: InferenceGraph, layer: ExportedLayer, *inputs: GraphTensor) -> GraphTensor:
    condition, *choices = _aligned(graph, layer, inputs)
    return graph.add("where", [graph.cast(condition, "bool"), *choices], (1, *layer.shape))


def scale_and_shift(layer: ExportedLayer) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the offset of a BatchNormalization, by channel."""
    w = layer.weights
    scale = w["gamma"] / np.sqrt(w["moving_variance"] + layer.op.epsilon)
    return scale, w["beta"] - w["moving_mean"] * scale


# Ops that multiply each channel by a factor and add an offset, with both. In int8 they are depthwise convolutions.
AFFINE: dict[type[Op], Callable[[ExportedLayer], tuple[Any, Any]]] = {
    BatchNormalization: scale_and_shift,
    Bias: lambda layer: (1.0, layer.weights["bias"]),
    HardSigmoid: lambda layer: (layer.op.alpha, layer.op.beta),  # then it is clipped to [0, 1]
    Rescaling: lambda layer: (layer.op.scale, layer.op.offset),
    Scale: lambda layer: (layer.weights["scale"], 0.0),
}


def _batchnorm(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """In sub-bands scales and shifts belong to rows of the image, each repeated for the rows of its sub-band."""
    both = scale_and_shift(layer)
    if isinstance(layer.op, SubSpectralNormalization):
        both = tuple(np.repeat(a, layer.shape[0] // len(a), 0)[:, None] for a in both)
    return graph.scalar("add", graph.scalar("mul", x, both[0]), both[1])


def _rounded(graph: InferenceGraph, x: GraphTensor, step: float) -> GraphTensor:
    """Multiples of `step`."""
    return graph.scalar("mul", graph.unary("rounded", graph.scalar("mul", x, 1 / step)), step) if step else x


def _reduced(kind: str) -> Callable[..., GraphTensor]:
    return lambda g, layer, x: g.reduce(
        kind, x, [axis + 1 for axis in layer.op.reduced(layer.shapes[0])], layer.op.keepdims
    )  # fmt: skip


def _pooled(kind: str) -> Callable[..., GraphTensor]:
    def handle(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
        window = layer.window
        settings = {"size": window.kernel, "strides": window.strides, "padding": window.padding}
        return graph.add(kind, [x], (1, *window.output, x.shape[-1]), **settings)

    return handle


def _space_to_depth(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    (height, width, channels), size = layer.shape, layer.op.size
    x = graph.reshape(x, (height, size, width, size, channels // size**2))
    return graph.reshape(graph.transpose(x, (0, 1, 3, 2, 4, 5)), layer.shape)


def _slice(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    return graph.slice(x, *zip(*((r.begin, r.size, r.stride) for r in layer.op.ranges(layer.shapes[0])), strict=True))


def _transposed_conv(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """One group without dilation, which all formats have: kernels get the zeros that stand for them."""
    op, window, kernel, channels = layer.op, layer.window, layer.weights["kernel"], x.shape[-1]
    reach = [(n - 1) * dilation + 1 for n, dilation in zip(window.kernel, window.dilation, strict=True)]
    whole = np.zeros((*reach, channels, op.filters), np.float32)
    inputs, filters = channels // op.groups, op.filters // op.groups
    for group in range(op.groups):
        rows, columns = (slice(group * n, (group + 1) * n) for n in (inputs, filters))
        whole[:: window.dilation[0], :: window.dilation[1], rows, columns] = kernel[..., columns]
    shape = (1, window.height, window.width, op.filters)
    settings = {"strides": window.strides, "padding": window.padding}
    y = graph.add("transposed_conv", [x, graph.constant(whole, "kernel")], shape, **settings)
    return graph.scalar("add", y, layer.weights["bias"]) if op.use_bias else y


# Settings that Resize shares with TFLite's and ONNX's operators: (interpolation, coordinates, rounding)
NATIVE = {
    *(("bilinear", coordinates, rounding) for coordinates in ("half_pixel", "asymmetric", "align_corners")
      for rounding in ROUNDINGS),
    ("nearest", "half_pixel", "round_prefer_ceil"), ("nearest", "asymmetric", "floor"),
    ("nearest", "align_corners", "round_prefer_ceil"),
}  # fmt: skip


def _resize(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """The formats' own operator where it means the same, else matrix products."""
    op = layer.op.as_resize(layer.shapes[0]) if isinstance(layer.op, UpSampling2D) else layer.op
    how = (op.interpolation, op.coordinates, op.rounding)
    size = op.output_shape(layer.shapes[0])[:2]
    if how not in NATIVE or op.scale is not None or (op.coordinates == "align_corners" and 1 in size):
        return _linear_map(graph, layer, x)
    return graph.add(
        f"resize_{op.interpolation}", [x], (1, *size, x.shape[-1]), size=size,
        align_corners=op.coordinates == "align_corners", half_pixel=op.coordinates == "half_pixel",
    )  # fmt: skip


def _linear_map(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """Resizing and adaptive means as two matrix products: exact, whatever the coordinates."""
    rows, columns = (graph.constant(m.T.astype(np.float32), "matrix") for m in layer.op.matrices(layer.shapes[0]))
    for matrix, order in ((rows, (0, 2, 3, 1)), (columns, (0, 3, 2, 1))):  # the axis of the product comes last
        x = graph.transpose(x, order)
        x = graph.add("dense", [x, matrix], (*x.shape[:-1], matrix.shape[-1]), activation=None)
    return graph.transpose(x, (0, 1, 3, 2))


def _constant(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """The weight, for as many examples as there are: added to a 0 of each."""
    largest = graph.unary("Abs", graph.reduce("max", x, range(1, len(x.shape))))
    zero = graph.reshape(graph.scalar("minimum", largest, 0), (1,) * len(layer.shape))
    return graph.scalar("add", zero, layer.weights["value"])


def _local_response(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """The formats' own operator for odd sizes; for even ones, which runtimes refuse, a matrix product."""
    op = layer.op
    if op.size % 2:
        return graph.unary("local_response", x, size=op.size, alpha=op.factor, beta=op.beta, bias=op.bias)
    windows = graph.constant(np.float32(op.windows(x.shape[-1]).T), "windows")
    total = graph.add("dense", [graph.binary("mul", x, x), windows], x.shape, activation=None)
    power = (Expression(graph, total) * op.factor + op.bias).unary("Log") * -op.beta
    return graph.binary("mul", x, power.unary("Exp").value)


def _prelu(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    return graph.add("prelu", [x, graph.constant(layer.weights["alpha"].astype(np.float32), "alpha")], x.shape)


def _relu(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    if (most := layer.op.max_value) not in (None, 6):
        return graph.scalar("minimum", graph.unary("ReLU", x), most)
    return graph.unary("relu6" if most else "ReLU", x)


def _concatenate(graph: InferenceGraph, layer: ExportedLayer, *x: GraphTensor) -> GraphTensor:
    return graph.add("concatenate", x, (1, *layer.shape), axis=len(layer.shape))


def _normalized(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """The values of each set of an example with mean 0 and deviation 1, times gamma, plus beta."""
    shape, weights = layer.shape, layer.weights
    span, groups = layer.op.sets(shape)
    parts = graph.reshape(x, (prod(shape[:-1]) // span, span, groups, shape[-1] // groups))
    centred = parts
    if layer.op.subtracts_mean:
        centred = graph.binary("sub", parts, graph.reduce("mean", parts, (2, 4)))
    variance = graph.reduce("mean", graph.binary("mul", centred, centred), (2, 4))
    inverse = graph.unary("Rsqrt", graph.scalar("add", variance, layer.op.epsilon))
    y = graph.reshape(graph.binary("mul", centred, inverse), shape)
    for kind, role in (("mul", "gamma"), ("add", "beta")):
        y = graph.scalar(kind, y, weights[role]) if role in weights else y
    return y


def _take(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor, numbers: GraphTensor) -> GraphTensor:
    """Rows that a constant lists, or by computed numbers of each example."""
    if (listed := graph.fixed.get(numbers)) is None:
        return graph.add("gather", [x, graph.whole(numbers)], (1, *layer.shape), axis=1, batch_dims=1)
    places, size = np.rint(listed).astype(np.int32), x.shape[1]
    if (places < -size).any() or (places >= size).any():
        raise FormatError(f"'{layer.name}' takes numbers of {size} rows that aren't there: {places.tolist()!s:.80}.")
    return graph.add("gather", [x, graph.constant(places % size, "indices")], (1, *layer.shape), axis=1)


def _embedding(graph: InferenceGraph, layer: ExportedLayer, numbers: GraphTensor) -> GraphTensor:
    rows = graph.constant(np.float32(layer.weights["embeddings"]), "embeddings")
    return graph.add("gather", [rows, graph.whole(numbers)], (1, *layer.shape), axis=0)


def _recurrent(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor, *others: GraphTensor) -> GraphTensor:
    """The operations of each step, one after the other; all steps share the weights."""
    op, steps, units = layer.op, x.shape[1], layer.op.units
    width, known = op.gates * units, {role: np.float32(a) for role, a in layer.weights.items()}
    both: list[Any] = [None, None]
    if op.use_bias:
        biases = known["bias"].reshape(op.biases, width)
        both[: op.biases] = [graph.constant(row, "bias") for row in biases]
    kernel, recurrent = (graph.constant(known[role], role) for role in ("kernel", "recurrent_kernel"))
    projected = graph.add("dense", [x, kernel, both[0]], (1, steps, width), activation=None)
    mask = next((a for a in others if len(a.shape) == 2), None)
    first = next((a for a in others if len(a.shape) == 3), None)

    def gates(row: GraphTensor) -> list[Expression]:
        return [Expression(graph, graph.slice(row, (gate * units,), (units,))) for gate in range(op.gates)]

    def rows(value: GraphTensor) -> list[GraphTensor]:
        return [graph.reshape(graph.slice(value, (row, 0), (1, units)), (units,)) for row in range(op.sets)]

    state, found = None if first is None else rows(first), []
    for place in op.places(steps):
        of_input = gates(graph.reshape(graph.slice(projected, (place, 0), (1, width)), (width,)))
        if state is None:
            state = [(of_input[0] * 0.0).value] * op.sets
        of_state = gates(graph.add("dense", [state[0], recurrent, both[1]], (1, width), activation=None))
        after = op.cell(Formulas(), of_input, of_state, [Expression(graph, row) for row in state])
        after = [row.value for row in after]
        if mask is not None:
            there = graph.cast(graph.slice(mask, (place,), (1,)), "bool")
            pairs = zip(after, state, strict=True)
            after = [graph.add("where", [there, new, old], new.shape) for new, old in pairs]
        state = after
        found.append(state[0])
    assert state is not None
    wanted = [*(found if op.return_sequences else []), *(state if op.return_state else [])]
    if not wanted:
        return state[0]
    wanted = [graph.reshape(row, (1, units)) for row in wanted]
    return graph.add("concatenate", wanted, (1, *layer.shape), axis=1) if len(wanted) > 1 else wanted[0]


def _attention(graph: InferenceGraph, layer: ExportedLayer, *inputs: GraphTensor) -> GraphTensor:
    """Products of all queries with all keys, by head."""
    op, (queries, channels), keys = layer.op, layer.shapes[0], layer.shapes[1][0]
    size = channels // op.heads

    def heads(x: GraphTensor, repeat: int = 1) -> GraphTensor:
        count = op.heads // repeat
        x = graph.transpose(graph.reshape(x, (x.shape[1], count, size)), (0, 2, 1, 3))
        if repeat == 1:
            return x
        parts = [graph.slice(x, (head, 0, 0), (1, x.shape[2], size)) for head in range(count) for _ in range(repeat)]
        return graph.add("concatenate", parts, (1, op.heads, *x.shape[2:]), axis=1)

    q = heads(graph.scalar("mul", inputs[0], op.factor(channels)))
    k, v = (heads(x, op.shared) for x in inputs[1:3])
    turned = graph.transpose(k, (0, 1, 3, 2))
    scores = graph.add("matmul", [q, turned], (1, op.heads, queries, keys))
    if op.causal:
        hidden = np.where(np.tri(queries, keys, dtype=bool), 0.0, HIDDEN)
        scores = graph.scalar("add", scores, hidden[None, None])
    if len(inputs) > 3:
        there = graph.cast(graph.cast(inputs[3], "bool"), "float32")
        lowered = graph.scalar("mul", graph.scalar("sub", there, 1), -HIDDEN)
        scores = graph.binary("add", scores, graph.reshape(lowered, (1, 1, keys)))
    mixed = graph.add("matmul", [graph.unary("softmax", scores, axis=-1), v], (1, op.heads, queries, size))
    return graph.reshape(graph.transpose(mixed, (0, 2, 1, 3)), (queries, channels))


def _rotary(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    """Each value times a cosine, plus its partner times a sine."""
    op, (steps, channels) = layer.op, layer.shape
    cosine, sine, partner = op.tables(steps, channels)
    swapped = graph.add("gather", [x, graph.constant(partner.astype(np.int32), "partners")], x.shape, axis=2)
    return graph.binary("add", graph.scalar("mul", x, cosine), graph.scalar("mul", swapped, sine))


def _reverse_embedding(graph: InferenceGraph, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
    kernel = graph.constant(np.float32(layer.weights["embeddings"].T), "embeddings")
    return graph.add("dense", [x, kernel], (*x.shape[:-1], layer.op.input_dim), activation=None)


HIDDEN = -1e9  # added to the scores of keys that a query doesn't see

# Inference operators by op; those that have a formula need no entry.
HANDLERS: dict[type[Op], Callable[..., GraphTensor]] = {
    Add: lambda g, layer, *x: reduce(partial(g.binary, "add"), x),
    AdaptiveAveragePooling2D: _linear_map,
    Attention: _attention,
    AveragePooling2D: _pooled("average_pool"),
    BatchNormalization: _batchnorm,
    BroadcastTo: lambda g, layer, x: g.add(
        "expand", _aligned(g, layer, [x]), (1, *layer.shape), shape=(1, *layer.shape)
    ),
    Concatenate: _concatenate,
    Constant: _constant,
    Conv2DTranspose: _transposed_conv,
    Coupling: lambda g, layer, x, f: g.binary("add", x, _rounded(g, f, layer.op.step)),
    Dropout: lambda g, layer, x: x,
    Embedding: _embedding,
    Flatten: lambda g, layer, x: g.reshape(x, layer.shape),
    GlobalAveragePooling2D: lambda g, layer, x: g.reduce("mean", x, (1, 2), keep=len(layer.shape) > 1),
    GlobalMaxPooling2D: _reduced("max"),
    Greater: _compared("greater"),
    GRU: _recurrent,
    GroupNormalization: _normalized,
    LayerNormalization: _normalized,
    Less: _compared("less"),
    LSTM: _recurrent,
    LocalResponseNormalization: _local_response,
    LogSoftmax: lambda g, layer, x: g.unary("log_softmax", x, axis=-1),
    MatMul: lambda g, layer, a, b: g.add("matmul", [a, b], (1, *layer.shape)),
    Max: _reduced("max"),
    MaxPooling2D: _pooled("max_pool"),
    Mean: _reduced("mean"),
    Pad: lambda g, layer, x: g.pad(x, ((0, 0), *layer.op.padding), layer.op.value, layer.op.mode),
    PadChannels: lambda g, layer, x: g.pad(x, [(0, 0)] * len(layer.shape) + [(layer.op.before, layer.op.after)]),
    PReLU: _prelu,
    ReLU: _relu,
    RMSNormalization: _normalized,
    Reshape: lambda g, layer, x: g.reshape(x, layer.shape),
    Resize: _resize,
    ReverseEmbedding: _reverse_embedding,
    RotaryEmbedding: _rotary,
    Slice: _slice,
    SliceChannels: lambda g, layer, x: g.slice(x, (*(0 for _ in layer.shape[:-1]), layer.op.start), layer.shape),
    Softmax: lambda g, layer, x: g.unary("softmax", x, axis=-1),
    SpaceToDepth: _space_to_depth,
    SpatialDropout2D: lambda g, layer, x: x,
    Square: lambda g, layer, x: g.binary("mul", x, x),
    Stream: lambda g, layer, x: _rounded(g, x, layer.op.step),
    SubSpectralNormalization: _batchnorm,
    Sum: _reduced("sum"),
    Take: _take,
    Transpose: lambda g, layer, x: g.transpose(x, (0, *(axis % len(x.shape) for axis in layer.op.axes))),
    UpSampling2D: _resize,
    Where: _where,
    ZeroPadding2D: lambda g, layer, x: g.pad(x, ((0, 0), *layer.op.sides, (0, 0))),
}


LARGEST_BIAS = 1 << 30  # of an int32 bias, with room for the sum of products
_SCALE, _ZERO, _LOW, _HIGH, _NEXT_LOW, _NEXT_HIGH = (
    FIELDS.index(name) for name in ("scale", "zero", "low", "high", "next_low", "next_high")
)


# Quantizations that TFLite prescribes, by the op: https://ai.google.dev/edge/litert/models/quantization_spec
FIXED: dict[type[Op], Quantization] = {
    LogSoftmax: Quantization(np.asarray(16 / 256, np.float32), 127),
    Sigmoid: Quantization(np.asarray(1 / 256, np.float32), -128),
    Softmax: Quantization(np.asarray(1 / 256, np.float32), -128),
    Tanh: Quantization(np.asarray(1 / 128, np.float32)),
}


SIX = Quantization(np.asarray(6 / 255, np.float32), -128)  # of relu6


class Ranges:
    """Quantizes activations by their ranges, and kernels by their own.

    Arguments:
    - `records`: range statistics by "layer/kind", float32 (16,), as in ModelFile.

    Raises FormatError if there are no ranges of activations.
    """

    def __init__(self, records: Weights) -> None:
        self.records = records
        self._quantizations: dict[GraphTensor, Quantization] = {}
        if not any(name.endswith("/activations") for name in records):
            raise FormatError(
                "The model has no ranges of activations, which int8 needs. Give examples (calibration=x; --images DIR) "
                "or train it with Precision(weights=Format(8, symmetric=True), activations=Format(8))."
            )

    def quantization(self, value: GraphTensor) -> Quantization | None:
        """The quantization of a value of the graph; None for float32."""
        return self._quantizations.get(value)

    def quantize(
        self, graph: InferenceGraph, name: str, y: GraphTensor, node: Node | None = None, *inputs: GraphTensor
    ) -> GraphTensor:
        """Quantize the output of a layer, or the network's input, by its range. Without a range it stays float32.

        Arguments:
        - `name`, `node`: the layer; no node for the network's input.
        - `y`, `inputs`: its output and inputs in the graph. An output that only selects among the inputs has their
          quantization, or one that holds all their ranges.
        """
        if y in self._quantizations:  # the layer's input, as it is
            return y
        record = self.records.get(f"{name}/activations")
        found = [self._quantizations.get(x) for x in inputs]
        known = [q for q in found if q is not None]
        if node is not None and type(node.op) in FIXED and known:
            quantization = FIXED[type(node.op)]
        elif record is not None:
            low, high = record[[_NEXT_LOW, _NEXT_HIGH]]
            quantization = _quantization(*(record[[_LOW, _HIGH]] if low == high else (low, high)))
        elif node is not None and node.op.selects and known and len(known) == len(found):
            quantization = known[0] if all(q.same(known[0]) for q in known) else _union(known)
        else:
            return y
        return self.apply(graph, y, quantization)

    def of_sum(self, x: GraphTensor, y: GraphTensor) -> Quantization:
        """A quantization for all sums of two quantized values."""
        (low, high), (more_low, more_high) = (_ends(self._quantizations[value]) for value in (x, y))
        return _quantization(low + more_low, high + more_high)

    def apply(self, graph: InferenceGraph, y: GraphTensor, quantization: Quantization) -> GraphTensor:
        quantized = graph.quantize(y, quantization)
        self._quantizations[quantized] = quantization
        return quantized

    def kernel(
        self, graph: InferenceGraph, layer: str, kernel: np.ndarray, factors: np.ndarray | None,
        bias: np.ndarray | None, x: GraphTensor,
    ) -> GraphTensor:  # fmt: skip
        """The constant of a kernel, whose last axis, that of the output channels, has a scale for each.

        Arguments:
        - `factors`: what a folded BatchNormalization multiplies the channels by. Integers of a kernel that was trained
          with one range stay as they were: the factors go into the scales.
        - `bias`, `x`: what is added, and the input; int32 must hold bias / (scale of x * scale of the kernel).
        """
        others = tuple(range(kernel.ndim - 1))
        factors = np.ones(kernel.shape[-1]) if factors is None else factors
        folded, quantization = kernel * factors, self._quantizations.get(x)
        if quantization is None:  # a float32 layer
            return graph.constant(np.float32(folded), "kernel")
        scales = np.abs(kernel).max(others) / 127
        if (levels := _levels(self.records.get(f"{layer}/weights"))) is not None:
            scales = np.full_like(scales, np.abs(kernel).max() / levels)
        scales = np.where(scales > 0, scales, 1) * np.where(factors != 0, np.abs(factors), 1)
        if bias is not None:
            scales = np.maximum(scales, np.abs(bias) / (quantization.scale.astype(np.float64) * LARGEST_BIAS))
        own = Quantization(scales.astype(np.float32), 0, kernel.ndim - 1)
        return graph.constant(own.decode(own.encode(folded)), "kernel", own)


def _quantization(low: float, high: float) -> Quantization:
    scale, zero = Format(8).parameters(np.float32(low), np.float32(high))
    return Quantization(np.asarray(scale, np.float32), int(zero))


def _union(quantizations: Sequence[Quantization]) -> Quantization:
    """A quantization whose range holds those of all."""
    lows, highs = zip(*map(_ends, quantizations), strict=True)
    return _quantization(min(lows), max(highs))


def _ends(quantization: Quantization) -> tuple[float, float]:
    """The lowest and the highest value."""
    low, high = (float(quantization.scale) * (end - quantization.zero) for end in (-128, 127))
    return low, high


def _levels(record: np.ndarray | None) -> int | None:
    """The highest integer of weights that were trained with one symmetric range; None for others."""
    if record is None or record[_ZERO] != 0 or record[_SCALE] <= 0:
        return None
    return min(round(float(max(-record[_LOW], record[_HIGH])) / float(record[_SCALE])), 127) or None


# Ops that move or reduce values: their handlers call methods of the graph that other libraries' tensors have, too.
MOVING = {op: HANDLERS[op] for op in (Flatten, GlobalMaxPooling2D, Max, Mean, Pad, Reshape, Slice, SpaceToDepth, Sum,
                                      Transpose)}  # fmt: skip


def handler(
    op: Op, handlers: Mapping[type[Op], Callable[..., Any]], formula: Callable[..., Any], library: str
) -> Callable[..., Any]:
    """Return the function that computes an op in another library: its entry of `handlers`, or `formula` if it has one.

    Raises FormatError for any other.
    """
    if type(op) not in handlers and formula_of(op) is None:
        raise FormatError(f"{library}'s version of a network has no {type(op).__name__}: leave {library} out for it.")
    return handlers.get(type(op), formula)


LINEAR = (Conv2D, DepthwiseConv2D, Dense)
WITH_MORE = (*LINEAR, Conv1D, DepthwiseConv1D)  # written with the layers after them


def inference_graph(
    network: Network, weights: Mapping[str, np.ndarray], ranges: Weights | None = None,
    has: Callable[[Op], bool] = lambda op: False,
) -> InferenceGraph:  # fmt: skip
    """Return the operations of the forward pass.

    Arguments:
    - `network`, `weights`: the graph, and arrays by "layer/role".
    - `ranges`: range statistics that a training with a Precision left (see ModelFile); activations that have some, and
      the kernels that multiply them, are quantized to int8 (default None: all is float32).
    - `has`: whether the format has an operator for an op of a single value, which is written by its formula otherwise
      (default: for none).

    Raises FormatError for ops without a handler, all of them at once.
    """
    known = (*HANDLERS, *LINEAR)
    ops = {n.name: n.op.plane if isinstance(n.op, OverSteps) else n.op for n in network.nodes.values()}
    unknown = {op: name for name, op in ops.items() if type(op) not in known and formula_of(op) is None}
    if unknown:
        names = ", ".join(f"{type(op).__name__} (layer '{layer}')" for op, layer in unknown.items())
        raise FormatError(f"Inference formats have no counterpart here for: {names}. Save it with Model.save instead.")
    if ranges is not None:
        return _Int8(network, weights, has, Ranges(ranges)).graph_of_all()
    return _Writer(network, weights, has).graph_of_all()


def ranged(network: Network) -> list[str]:
    """Layers whose outputs need a range to be computed with integers, those of the network among them."""
    ends = [nodes[-1] for stage in fuse(network) for nodes in steps(stage)]
    free = (*FIXED, Dropout, SpatialDropout2D)
    return [node.name for node in ends if not node.op.selects and not isinstance(node.op, free)]


def steps(stage: Stage) -> list[list[Node]]:
    """The stage's layers as they are written: a linear op with the BatchNormalization and the rectifier after it as
    one operation, every other layer alone."""
    first, *rest = stage.nodes
    together = [first]
    if isinstance(first.op, WITH_MORE):
        if rest and type(rest[0].op) is BatchNormalization:
            together.append(rest.pop(0))
        if rest and isinstance(rest[0].op, ReLU) and rest[0].op.max_value in (None, 6):
            together.append(rest.pop(0))
    return [together, *([node] for node in rest)]


class _Writer:
    """Writes a network's layers into a graph, in float32."""

    def __init__(self, network: Network, weights: Mapping[str, np.ndarray], has: Callable[[Op], bool]) -> None:
        self.network, self.weights, self.graph = network, weights, InferenceGraph(network.name, has)
        self.constants: dict[tuple[str, str], list[GraphTensor]] = {}  # by layer and name

    def graph_of_all(self) -> InferenceGraph:
        graph = self.graph
        values = {name: graph.input(name, shape) for name, shape in self.network.inputs.items()}
        values = {name: self.ended(value, name) for name, value in values.items()}
        for stage in fuse(self.network):
            graph.layer = stage.output.name
            x = [values[name] for name in stage.inputs]
            for nodes in steps(stage):
                layer = self._layer(nodes[0])
                if over_steps := isinstance(layer.op, OverSteps):
                    layer, x = layer.as_image, [self.reshaped(value, (1, *value.shape[1:])) for value in x]
                y = self._linear(layer, nodes[1:], x[0]) if isinstance(layer.op, LINEAR) else self.written(layer, *x)
                y = self.ended(y, nodes[-1].name, nodes[-1], *x)
                x = [self.reshaped(y, y.shape[2:]) if over_steps and len(y.shape) == 4 else y]
            values[stage.output.name] = x[0]
            if isinstance(stage.output.op, Constant):
                graph.fixed[x[0]] = self.weights[f"{stage.output.name}/value"]
        graph.outputs |= {name: values[name] for name in self.network.outputs}
        graph.leave_out_unread()
        return graph

    def ended(self, y: GraphTensor, name: str, node: Node | None = None, *inputs: GraphTensor) -> GraphTensor:
        """The output of a layer, or the network's input, as the next layers read it."""
        return y

    def reshaped(self, x: GraphTensor, shape: Shape) -> GraphTensor:
        """Each example in another shape."""
        return self.graph.reshape(x, shape)

    def written(self, layer: ExportedLayer, *x: GraphTensor) -> GraphTensor:
        return HANDLERS.get(type(layer.op), _formula)(self.graph, layer, *x)

    def kernel(
        self, layer: str, kernel: np.ndarray, factors: np.ndarray | None, bias: np.ndarray | None, x: GraphTensor
    ) -> GraphTensor:
        """The constant of a kernel; the arguments are those of `Ranges.kernel`."""
        return self.once(layer, (kernel if factors is None else kernel * factors).astype(np.float32), "kernel")

    def once(self, owner: str, array: Any, name: str) -> GraphTensor:
        """A constant of a layer, the same one for all layers that share it."""
        for value in self.constants.setdefault((owner, name), []):
            if np.array_equal(value.array, array):  # type: ignore[arg-type]  a constant has one
                return value
        self.constants[owner, name].append(self.graph.constant(array, name))
        return self.constants[owner, name][-1]

    def _layer(self, node: Node) -> ExportedLayer:
        prefix, names = f"{node.owner}/", self.network.weights_of(node)
        own = {name.removeprefix(prefix): self.weights[name].astype(np.float64) for name in names}
        return replace(ExportedLayer.of(self.network, node), weights=own)

    def _linear(self, layer: ExportedLayer, others: Sequence[Node], x: GraphTensor) -> GraphTensor:
        """A linear op with the BatchNormalization and the rectifier after it."""
        op, kernel, bias = layer.op, layer.weights["kernel"], layer.weights.get("bias")
        scale = activation = None
        for node in others:
            if isinstance(node.op, ReLU):
                activation = "relu6" if node.op.max_value else "ReLU"
            else:
                scale, shift = scale_and_shift(self._layer(node))
                bias = shift if bias is None else bias * scale + shift
        if isinstance(op, DepthwiseConv2D):
            kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
        w = self.kernel(layer.owner, kernel, scale, bias, x)
        b = None if bias is None else self.once(layer.owner, np.float32(bias), "bias")
        if isinstance(op, Dense):
            return self.graph.add("dense", [x, w, b], (*x.shape[:-1], kernel.shape[-1]), activation=activation)
        kind, groups = ("conv", op.groups) if isinstance(op, Conv2D) else ("depthwise", x.shape[-1])
        return self.graph.convolution(kind, [x, w, b], layer.window, groups, activation)


class _Int8(_Writer):
    """Writes layers with int8 where ranges of their inputs and outputs are known."""

    def __init__(
        self, network: Network, weights: Mapping[str, np.ndarray], has: Callable[[Op], bool], ranges: Ranges
    ) -> None:
        super().__init__(network, weights, has)
        self.ranges = ranges

    def ended(self, y: GraphTensor, name: str, node: Node | None = None, *inputs: GraphTensor) -> GraphTensor:
        return self.ranges.quantize(self.graph, name, y, node, *inputs)

    def kernel(
        self, layer: str, kernel: np.ndarray, factors: np.ndarray | None, bias: np.ndarray | None, x: GraphTensor
    ) -> GraphTensor:
        return self.ranges.kernel(self.graph, layer, kernel, factors, bias, x)

    def reshaped(self, x: GraphTensor, shape: Shape) -> GraphTensor:
        return self._moved(x, "reshape", shape) if self.ranges.quantization(x) else super().reshaped(x, shape)

    def written(self, layer: ExportedLayer, *x: GraphTensor) -> GraphTensor:
        graph, ranges = self.graph, self.ranges
        if (affine := self._affine(layer, x[0])) is not None:
            return self._scaled(layer, x[0], *affine)
        if not all(map(ranges.quantization, x)):
            return super().written(layer, *x)
        if type(layer.op) is SubSpectralNormalization:
            return self._sub_spectral(layer, x[0])
        if type(layer.op) is SiLU:
            return graph.binary("mul", x[0], ranges.apply(graph, graph.unary("Sigmoid", x[0]), FIXED[Sigmoid]))
        if type(layer.op) is Add:  # sums between are quantized, too
            sums = [*x[:1], *x[1:-1]]
            y = reduce(lambda a, b: ranges.apply(graph, graph.binary("add", a, b), ranges.of_sum(a, b)), sums)
            return graph.binary("add", y, x[-1]) if len(x) > 1 else y
        return super().written(layer, *x)

    def _affine(self, layer: ExportedLayer, x: GraphTensor) -> tuple[np.ndarray, np.ndarray] | None:
        """Factor and offset of each channel, if the op is of that kind, and input and output are quantized."""
        known = self.ranges.quantization(x) is not None and f"{layer.name}/activations" in self.ranges.records
        if type(layer.op) not in AFFINE or not known:
            return None
        both = [np.asarray(a, float) for a in AFFINE[type(layer.op)](layer)]
        if any(a.size > 1 and a.shape[-1] < a.size for a in both):  # not alike everywhere in a channel
            return None
        factor, offset = (np.broadcast_to(a.ravel(), x.shape[-1]) for a in both)
        return factor, offset

    def _scaled(self, layer: ExportedLayer, x: GraphTensor, factor: np.ndarray, offset: np.ndarray) -> GraphTensor:
        """Depthwise convolutions with a kernel of one pixel, whose integers are 127. One is enough, unless the op is a
        HardSigmoid: relu6(6 x) / 6."""
        shape = x.shape
        if len(shape) != 4:
            x = self._moved(x, "reshape", (1, prod(shape[:-1]), shape[-1]))
        if isinstance(layer.op, HardSigmoid):
            y = self._pointwise(layer, x, 6 * factor, 6 * offset, "relu6")
            x = self.ranges.apply(self.graph, y, SIX)
            factor, offset = np.full_like(factor, 1 / 6), np.zeros_like(offset)
        y = self._pointwise(layer, x, factor, offset)
        return y if len(shape) == 4 else self._moved(self.ended(y, layer.name), "reshape", shape[1:])

    def _pointwise(
        self,
        layer: ExportedLayer,
        x: GraphTensor,
        factor: np.ndarray,
        offset: np.ndarray,
        activation: str | None = None,
    ) -> GraphTensor:
        kernel = self.kernel(layer.name, factor.reshape(1, 1, 1, -1), None, offset, x)
        bias, window = self.graph.constant(np.float32(offset), "bias"), Window.pointwise(*x.shape[1:3])
        return self.graph.convolution("depthwise", [x, kernel, bias], window, x.shape[-1], activation)

    def _moved(self, x: GraphTensor, method: str, setting: Sequence[int]) -> GraphTensor:
        """`x` reshaped or transposed, in the same integers."""
        quantization = self.ranges.quantization(x)
        assert quantization is not None
        return self.ranges.apply(self.graph, getattr(self.graph, method)(x, setting), quantization)

    def _sub_spectral(self, layer: ExportedLayer, x: GraphTensor) -> GraphTensor:
        """A factor for each row and channel: rows are moved to the channels and back."""
        height, width, channels = layer.shape
        factor, offset = (np.repeat(a, height // len(a), 0).ravel() for a in scale_and_shift(layer))
        y = self._moved(self._moved(x, "transpose", (0, 2, 1, 3)), "reshape", (1, width, height * channels))
        y = self.ended(self._pointwise(layer, y, factor, offset), layer.name)
        return self._moved(self._moved(y, "reshape", (width, height, channels)), "transpose", (0, 2, 1, 3))
