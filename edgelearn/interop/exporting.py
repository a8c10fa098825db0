"""Networks as inference graphs: the operations that runtimes such as LiteRT and ONNX Runtime have, in the order they
run.

BatchNormalization is folded, dropout left out, and tensors are quantized as in training, from its range statistics.
Activations have a batch axis and channels last. `HANDLERS` has one function an op, which gets the graph, the layer
and its inputs, and returns the layer's output. Writers of formats translate a graph operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import inf, prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.graph.fuse import Stage, fuse
from edgelearn.ops import (
    ELU,
    GELU,
    SELU,
    AdaptiveAveragePooling2D,
    Add,
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
    Flatten,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    Greater,
    GroupNormalization,
    HardSigmoid,
    HardSwish,
    LayerNormalization,
    LeakyReLU,
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
    Scale,
    Sigmoid,
    SiLU,
    Slice,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Sum,
    Tanh,
    Transpose,
    UpSampling2D,
    Where,
    ZeroPadding2D,
)
from edgelearn.ops.formats import Format
from edgelearn.ops.quantize import FIELDS
from edgelearn.ops.resize import ROUNDINGS
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
class Value:
    """A tensor of the graph.

    Arguments:
    - `name`: unique in the graph.
    - `shape`: for activations with a batch of 1 in front.
    - `array`: values of a constant, float32 or int64; None for activations.
    - `quantization`: of a constant whose values are those of integers.
    """

    name: str
    shape: Shape
    array: np.ndarray | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation.

    Arguments:
    - `kind`: its name; `attributes`: its settings (see the methods of InferenceGraph).
    - `inputs`, `output`: the values that it reads and the one that it writes.
    """

    kind: str
    inputs: tuple[Value, ...]
    output: Value
    attributes: Mapping[str, Any] = field(default_factory=dict)


class InferenceGraph:
    """Operations in order, between `inputs` and `outputs`, values by name. Each method appends an operation and returns
    its output; shapes have a batch axis, which is 1 here and any number when the graph runs.

    Besides the kinds of the methods there are, with their attributes: conv and depthwise (window, groups of conv,
    activation) of kernels (height, width, input channels / groups, filters) and (height, width, 1, channels times
    kernels a channel), dense (activation) of a kernel (inputs, outputs), each with a bias or without; transposed_conv
    (window), the gradient of a convolution with that window, whose padding is cut off; max_pool and average_pool
    (window), of windows without their padding; resize (how), matmul, prelu, where, greater, less and broadcast_to.

    Arguments:
    - `name`: the network's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self._names: set[str] = set()
        self.layer = name  # that is being written; names its values

    def input(self, name: str, shape: Sequence[int]) -> Value:
        self.inputs[name] = Value(self._unique(name), (1, *shape))
        return self.inputs[name]

    def constant(self, array: Any, name: str = "constant", quantization: Quantization | None = None) -> Value:
        array = np.asarray(array)
        return Value(self._unique(f"{self.layer}/{name}"), array.shape, array, quantization)

    def add(self, kind: str, inputs: Sequence[Value | None], shape: Sequence[int], **attributes: Any) -> Value:
        """An operation of any kind, whose output has this shape; inputs that are None are left out."""
        output = Value(self._unique(f"{self.layer}/{kind}"), tuple(map(int, shape)))
        self.operations.append(Operation(kind, tuple(x for x in inputs if x is not None), output, attributes))
        return output

    def unary(self, kind: str, x: Value, **attributes: Any) -> Value:
        """One of relu, relu6, sigmoid, tanh, exp, log, sqrt, abs, neg, round, softmax, and others that writers have."""
        return self.add(kind, [x], x.shape, **attributes)

    def binary(self, kind: str, x: Value, y: Value) -> Value:
        """One of add, sub, mul, div, maximum, minimum, with sizes of 1 broadcast."""
        return self.add(kind, [x, y], np.broadcast_shapes(x.shape, y.shape))

    def scalar(self, kind: str, x: Value, value: Any) -> Value:
        """`binary` with float32 values."""
        return self.binary(kind, x, self.constant(np.asarray(value, np.float32)))

    def pad(self, x: Value, sides: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Value:
        """Pad each axis, the batch's among them, by (before, after). `mode`: constant, reflect or symmetric."""
        if not any(map(any, sides)):
            return x
        shape = tuple(n + sum(both) for n, both in zip(x.shape, sides, strict=True))
        return self.add("pad", [x], shape, sides=tuple(map(tuple, sides)), value=value, mode=mode)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
        """One of mean, sum, max over axes from 1 on."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keep or axis not in axes)
        return self.add(f"reduce_{kind}", [x], shape, axes=tuple(axes), keep=keep)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Change the shape of each example, in C order."""
        shape = (1, *shape)
        assert prod(shape) == prod(x.shape)
        return x if shape == x.shape else self.add("reshape", [x], shape)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Reorder the axes; the batch's stays the first."""
        return self.add("transpose", [x], [x.shape[axis] for axis in order], order=tuple(order))

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """`sizes` elements of each axis but the batch's, from `starts` on, every `steps`-th (default 1)."""
        steps = tuple(steps or (1,) * len(sizes))
        last = [start + (size - 1) * step for start, size, step in zip(starts, sizes, steps, strict=True)]
        ends = [end + (1 if step > 0 else -1) for end, step in zip(last, steps, strict=True)]
        ends = tuple(end if end >= 0 else -n - 1 for end, n in zip(ends, x.shape[1:], strict=True))  # before the first
        return self.add("slice", [x], (1, *sizes), starts=tuple(starts), ends=ends, steps=steps)

    def quantize(self, x: Value, quantization: Quantization) -> Value:
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
class Layer:
    """A layer that a handler writes.

    Arguments:
    - `name`, `op`, `shape`: its name, its op and its output's shape.
    - `shapes`: shapes of its inputs, without the batch.
    - `weights`: its arrays by role, float64.
    """

    name: str
    op: Any
    shape: Shape
    shapes: list[Shape]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(network: Network, node: Node) -> Layer:
        """The layer without its weights."""
        return Layer(node.name, node.op, node.shape, network.input_shapes(node.inputs))

    @property
    def window(self) -> Window:
        return self.op.window(*self.shapes)


def _operator(kind: str, swapped: bool = False) -> Callable[[Expression, Any], Expression]:
    def operate(x: Expression, other: Any) -> Expression:
        g = x.graph
        number = other.value if isinstance(other, Expression) else g.constant(np.float32(other), "number")
        return Expression(g, g.binary(kind, *((number, x.value) if swapped else (x.value, number))))

    return operate


@dataclass(frozen=True, eq=False)
class Expression:
    """A value that Python's operators, and the functions of `Formulas`, compute with."""

    graph: InferenceGraph
    value: Value

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    maximum, minimum = _operator("maximum"), _operator("minimum")

    def unary(self, kind: str) -> Expression:
        return Expression(self.graph, self.graph.unary(kind, self.value))

    def __pow__(self, power: int) -> Expression:
        return self if power == 1 else self * self ** (power - 1)

    def __neg__(self) -> Expression:
        return self.unary("neg")


class Formulas:
    """The namespace for formulas of ops (see edgelearn.ops.formula) whose functions add operations to a graph."""

    square = staticmethod(lambda x: x * x)
    expm1 = staticmethod(lambda x: x.unary("exp") - 1.0)
    log1p = staticmethod(lambda x: (x + 1.0).unary("log"))
    maximum, minimum = staticmethod(Expression.maximum), staticmethod(Expression.minimum)

    def __getattr__(self, name: str) -> Callable[[Expression], Expression]:
        return lambda x: x.unary(name)

    def clip(self, x: Expression, low: float, high: float) -> Expression:
        if (low, high) in ((0, inf), (0, 6)):
            return x.unary("relu6" if high == 6 else "relu")
        x = x if low == -inf else x.maximum(low)
        return x if high == inf else x.minimum(high)


def _aligned(graph: InferenceGraph, layer: Layer, inputs: Sequence[Value]) -> list[Value]:
    """Operands of lower rank get sizes of 1 after the batch's axis."""
    return [graph.reshape(x, (1,) * (1 + len(layer.shape) - len(x.shape)) + x.shape[1:]) for x in inputs]


def _formula(graph: InferenceGraph, layer: Layer, *inputs: Value) -> Value:
    weights = [graph.constant(a.astype(np.float32), role) for role, a in layer.weights.items()]
    operands = [Expression(graph, x) for x in (*_aligned(graph, layer, inputs), *weights)]
    return layer.op.formula(Formulas(), *operands).value


def _own(kind: str) -> Callable[..., Value]:
    """The formats' own operator, whose operands have as many axes as the result."""
    return lambda g, layer, *inputs: g.add(kind, _aligned(g, layer, inputs), (1, *layer.shape))


def _elu(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The formats' own operator, whose alpha is 1; below 0 it is multiplied, as SELU is."""
    op, y = layer.op, graph.unary("elu", x)
    if op.alpha != 1:
        y = graph.binary("add", graph.unary("relu", x), graph.scalar("mul", graph.scalar("minimum", y, 0), op.alpha))
    return y if op.scale == 1 else graph.scalar("mul", y, op.scale)


def scale_and_shift(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the offset of a BatchNormalization, by channel."""
    w = layer.weights
    scale = w["gamma"] / np.sqrt(w["moving_variance"] + layer.op.epsilon)
    return scale, w["beta"] - w["moving_mean"] * scale


# Ops that multiply each channel by a factor and add an offset, with both. In int8 they are depthwise convolutions.
AFFINE: dict[type[Op], Callable[[Layer], tuple[Any, Any]]] = {
    BatchNormalization: scale_and_shift,
    Bias: lambda layer: (1.0, layer.weights["bias"]),
    HardSigmoid: lambda layer: (layer.op.alpha, layer.op.beta),  # then it is clipped to [0, 1]
    Rescaling: lambda layer: (layer.op.scale, layer.op.offset),
    Scale: lambda layer: (layer.weights["scale"], 0.0),
}


def _batchnorm(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """In sub-bands scales and shifts belong to rows of the image, each repeated for the rows of its sub-band."""
    both = scale_and_shift(layer)
    if isinstance(layer.op, SubSpectralNormalization):
        both = tuple(np.repeat(a, layer.shape[0] // len(a), 0)[:, None] for a in both)
    return graph.scalar("add", graph.scalar("mul", x, both[0]), both[1])


def _rounded(graph: InferenceGraph, x: Value, step: float) -> Value:
    """Multiples of `step`."""
    return graph.scalar("mul", graph.unary("round", graph.scalar("mul", x, 1 / step)), step) if step else x


def _reduced(kind: str) -> Callable[..., Value]:
    return lambda g, layer, x: g.reduce(
        kind, x, [axis + 1 for axis in layer.op.reduced(layer.shapes[0])], layer.op.keepdims
    )  # fmt: skip


def _pooled(kind: str) -> Callable[..., Value]:
    def handle(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
        return graph.add(kind, [x], (1, *layer.window.output, x.shape[-1]), window=layer.window)

    return handle


def _space_to_depth(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    (height, width, channels), size = layer.shape, layer.op.size
    x = graph.reshape(x, (height, size, width, size, channels // size**2))
    return graph.reshape(graph.transpose(x, (0, 1, 3, 2, 4, 5)), layer.shape)


def _slice(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    return graph.slice(x, *zip(*((r.begin, r.size, r.stride) for r in layer.op.ranges(layer.shapes[0])), strict=True))


def _transposed_conv(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """One group without dilation, which all formats have: kernels get the zeros that stand for them."""
    op, window, kernel, channels = layer.op, layer.window, layer.weights["kernel"], x.shape[-1]
    reach = [(n - 1) * dilation + 1 for n, dilation in zip(window.kernel, window.dilation, strict=True)]
    whole = np.zeros((*reach, channels, op.filters), np.float32)
    inputs, filters = channels // op.groups, op.filters // op.groups
    for group in range(op.groups):
        rows, columns = (slice(group * n, (group + 1) * n) for n in (inputs, filters))
        whole[:: window.dilation[0], :: window.dilation[1], rows, columns] = kernel[..., columns]
    shape = (1, window.height, window.width, op.filters)
    y = graph.add("transposed_conv", [x, graph.constant(whole, "kernel")], shape, window=window)
    return graph.scalar("add", y, layer.weights["bias"]) if op.use_bias else y


# Settings that Resize shares with TFLite's and ONNX's operators: (interpolation, coordinates, rounding)
NATIVE = {
    *(("bilinear", coordinates, rounding) for coordinates in ("half_pixel", "asymmetric", "align_corners")
      for rounding in ROUNDINGS),
    ("nearest", "half_pixel", "round_prefer_ceil"), ("nearest", "asymmetric", "floor"),
    ("nearest", "align_corners", "round_prefer_ceil"),
}  # fmt: skip


def _resize(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The formats' own operator where it means the same, else matrix products."""
    op = layer.op.as_resize(layer.shapes[0]) if isinstance(layer.op, UpSampling2D) else layer.op
    how = (op.interpolation, op.coordinates, op.rounding)
    size = op.output_shape(layer.shapes[0])[:2]
    if how not in NATIVE or op.scale is not None or (op.coordinates == "align_corners" and 1 in size):
        return _linear_map(graph, layer, x)
    return graph.add("resize", [x], (1, *size, x.shape[-1]), how=how)


def _linear_map(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """Resizing and adaptive means as two matrix products: exact, whatever the coordinates."""
    rows, columns = (graph.constant(m.T.astype(np.float32), "matrix") for m in layer.op.matrices(layer.shapes[0]))
    for matrix, order in ((rows, (0, 2, 3, 1)), (columns, (0, 3, 2, 1))):  # the axis of the product comes last
        x = graph.transpose(x, order)
        x = graph.add("dense", [x, matrix], (*x.shape[:-1], matrix.shape[-1]), activation=None)
    return graph.transpose(x, (0, 1, 3, 2))


def _constant(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The weight, for as many examples as there are: added to a 0 of each."""
    largest = graph.unary("abs", graph.reduce("max", x, range(1, len(x.shape))))
    zero = graph.reshape(graph.scalar("minimum", largest, 0), (1,) * len(layer.shape))
    return graph.scalar("add", zero, layer.weights["value"])


def _prelu(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    return graph.add("prelu", [x, graph.constant(layer.weights["alpha"].astype(np.float32), "alpha")], x.shape)


def _relu(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    if (most := layer.op.max_value) not in (None, 6):
        return graph.scalar("minimum", graph.unary("relu", x), most)
    return graph.unary("relu6" if most else "relu", x)


def _concatenate(graph: InferenceGraph, layer: Layer, *x: Value) -> Value:
    return graph.add("concatenate", x, (1, *layer.shape), axis=len(layer.shape))


def _normalized(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The values of each set of an example with mean 0 and deviation 1, times gamma, plus beta."""
    shape, weights = layer.shape, layer.weights
    span, groups = layer.op.sets(shape)
    parts = graph.reshape(x, (prod(shape[:-1]) // span, span, groups, shape[-1] // groups))
    centred = graph.binary("sub", parts, graph.reduce("mean", parts, (2, 4)))
    variance = graph.reduce("mean", graph.binary("mul", centred, centred), (2, 4))
    inverse = graph.unary("rsqrt", graph.scalar("add", variance, layer.op.epsilon))
    y = graph.reshape(graph.binary("mul", centred, inverse), shape)
    for kind, role in (("mul", "gamma"), ("add", "beta")):
        y = graph.scalar(kind, y, weights[role]) if role in weights else y
    return y


# Inference operators by op; those that have a formula need no entry.
HANDLERS: dict[type[Op], Callable[..., Value]] = {
    Add: lambda g, layer, *x: reduce(partial(g.binary, "add"), x),
    AdaptiveAveragePooling2D: _linear_map,
    AveragePooling2D: _pooled("average_pool"),
    BatchNormalization: _batchnorm,
    BroadcastTo: _own("broadcast_to"),
    Concatenate: _concatenate,
    Constant: _constant,
    Conv2DTranspose: _transposed_conv,
    Coupling: lambda g, layer, x, f: g.binary("add", x, _rounded(g, f, layer.op.step)),
    Dropout: lambda g, layer, x: x,
    ELU: _elu,
    Flatten: lambda g, layer, x: g.reshape(x, layer.shape),
    GELU: lambda g, layer, x: _formula(g, layer, x) if layer.op.approximate else g.unary("gelu", x),
    GlobalAveragePooling2D: lambda g, layer, x: g.reduce("mean", x, (1, 2), keep=len(layer.shape) > 1),
    GlobalMaxPooling2D: _reduced("max"),
    Greater: _own("greater"),
    GroupNormalization: _normalized,
    HardSwish: lambda g, layer, x: g.unary("hard_swish", x),
    LayerNormalization: _normalized,
    LeakyReLU: lambda g, layer, x: g.unary("leaky_relu", x, alpha=layer.op.negative_slope),
    Less: _own("less"),
    LocalResponseNormalization: lambda g, layer, x: g.unary(
        "local_response", x, **{name: getattr(layer.op, name) for name in ("size", "factor", "beta", "bias")}
    ),
    LogSoftmax: lambda g, layer, x: g.unary("log_softmax", x),
    MatMul: lambda g, layer, a, b: g.add("matmul", [a, b], (1, *layer.shape)),
    Max: _reduced("max"),
    MaxPooling2D: _pooled("max_pool"),
    Mean: _reduced("mean"),
    Pad: lambda g, layer, x: g.pad(x, ((0, 0), *layer.op.padding), layer.op.value, layer.op.mode),
    PadChannels: lambda g, layer, x: g.pad(x, [(0, 0)] * len(layer.shape) + [(layer.op.before, layer.op.after)]),
    PReLU: _prelu,
    ReLU: _relu,
    Reshape: lambda g, layer, x: g.reshape(x, layer.shape),
    Resize: _resize,
    SELU: _elu,
    Slice: _slice,
    SliceChannels: lambda g, layer, x: g.slice(x, (*(0 for _ in layer.shape[:-1]), layer.op.start), layer.shape),
    Softmax: lambda g, layer, x: g.unary("softmax", x),
    SpaceToDepth: _space_to_depth,
    SpatialDropout2D: lambda g, layer, x: x,
    Stream: lambda g, layer, x: _rounded(g, x, layer.op.step),
    SubSpectralNormalization: _batchnorm,
    Sum: _reduced("sum"),
    Transpose: lambda g, layer, x: g.transpose(x, (0, *(axis % len(x.shape) for axis in layer.op.axes))),
    UpSampling2D: _resize,
    Where: _own("where"),
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
        self._quantizations: dict[Value, Quantization] = {}
        if not any(name.endswith("/activations") for name in records):
            raise FormatError(
                "The model has no ranges of activations, which int8 needs. Give examples (calibration=x; --images DIR) "
                "or train it with Precision(weights=Format(8, symmetric=True), activations=Format(8))."
            )

    def quantization(self, value: Value) -> Quantization | None:
        """The quantization of a value of the graph; None for float32."""
        return self._quantizations.get(value)

    def quantize(self, graph: InferenceGraph, name: str, y: Value, node: Node | None = None, *inputs: Value) -> Value:
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

    def of_sum(self, x: Value, y: Value) -> Quantization:
        """A quantization for all sums of two quantized values."""
        (low, high), (more_low, more_high) = (_ends(self._quantizations[value]) for value in (x, y))
        return _quantization(low + more_low, high + more_high)

    def apply(self, graph: InferenceGraph, y: Value, quantization: Quantization) -> Value:
        quantized = graph.quantize(y, quantization)
        self._quantizations[quantized] = quantization
        return quantized

    def kernel(
        self, graph: InferenceGraph, layer: str, kernel: np.ndarray, factors: np.ndarray | None,
        bias: np.ndarray | None, x: Value,
    ) -> Value:  # fmt: skip
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


def inference_graph(
    network: Network, weights: Mapping[str, np.ndarray], ranges: Weights | None = None
) -> InferenceGraph:
    """Return the operations of the forward pass.

    Arguments:
    - `network`, `weights`: the graph, and arrays by "layer/role".
    - `ranges`: range statistics that a training with a Precision left (see ModelFile); activations that have some, and
      the kernels that multiply them, are quantized to int8 (default None: all is float32).

    Raises FormatError for ops without a handler, all of them at once.
    """
    known = (*HANDLERS, *LINEAR)
    unknown = {n.op: n.name for n in network.nodes.values() if type(n.op) not in known and formula_of(n.op) is None}
    if unknown:
        ops = ", ".join(f"{type(op).__name__} (layer '{layer}')" for op, layer in unknown.items())
        raise FormatError(f"Inference formats have no counterpart here for: {ops}. Save it with Model.save instead.")
    if ranges is not None:
        return _Int8(network, weights, Ranges(ranges)).graph_of_all()
    return _Writer(network, weights).graph_of_all()


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
    if isinstance(first.op, LINEAR):
        if rest and type(rest[0].op) is BatchNormalization:
            together.append(rest.pop(0))
        if rest and isinstance(rest[0].op, ReLU) and rest[0].op.max_value in (None, 6):
            together.append(rest.pop(0))
    return [together, *([node] for node in rest)]


class _Writer:
    """Writes a network's layers into a graph, in float32."""

    def __init__(self, network: Network, weights: Mapping[str, np.ndarray]) -> None:
        self.network, self.weights, self.graph = network, weights, InferenceGraph(network.name)

    def graph_of_all(self) -> InferenceGraph:
        graph = self.graph
        values = {name: graph.input(name, shape) for name, shape in self.network.inputs.items()}
        values = {name: self.ended(value, name) for name, value in values.items()}
        for stage in fuse(self.network):
            graph.layer = stage.output.name
            x = [values[name] for name in stage.inputs]
            for nodes in steps(stage):
                layer = self._layer(nodes[0])
                y = self._linear(layer, nodes[1:], x[0]) if isinstance(layer.op, LINEAR) else self.written(layer, *x)
                x = [self.ended(y, nodes[-1].name, nodes[-1], *x)]
            values[stage.output.name] = x[0]
        graph.outputs |= {name: values[name] for name in self.network.outputs}
        return graph

    def ended(self, y: Value, name: str, node: Node | None = None, *inputs: Value) -> Value:
        """The output of a layer, or the network's input, as the next layers read it."""
        return y

    def written(self, layer: Layer, *x: Value) -> Value:
        return HANDLERS.get(type(layer.op), _formula)(self.graph, layer, *x)

    def kernel(
        self, layer: str, kernel: np.ndarray, factors: np.ndarray | None, bias: np.ndarray | None, x: Value
    ) -> Value:
        """The constant of a kernel; the arguments are those of `Ranges.kernel`."""
        return self.graph.constant((kernel if factors is None else kernel * factors).astype(np.float32), "kernel")

    def _layer(self, node: Node) -> Layer:
        prefix = f"{node.name}/"
        names = [name for name in self.network.parameters if name.startswith(prefix)]
        own = {name.removeprefix(prefix): self.weights[name].astype(np.float64) for name in names}
        return replace(Layer.of(self.network, node), weights=own)

    def _linear(self, layer: Layer, others: Sequence[Node], x: Value) -> Value:
        """A linear op with the BatchNormalization and the rectifier after it."""
        op, kernel, bias = layer.op, layer.weights["kernel"], layer.weights.get("bias")
        scale = activation = None
        for node in others:
            if isinstance(node.op, ReLU):
                activation = "relu6" if node.op.max_value else "relu"
            else:
                scale, shift = scale_and_shift(self._layer(node))
                bias = shift if bias is None else bias * scale + shift
        if isinstance(op, DepthwiseConv2D):
            kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
        w = self.kernel(layer.name, kernel, scale, bias, x)
        b = None if bias is None else self.graph.constant(np.float32(bias), "bias")
        kind, shape, more = "dense", (*x.shape[:-1], kernel.shape[-1]), dict[str, Any]()
        if not isinstance(op, Dense):
            kind, shape = "depthwise", (1, *layer.window.output, kernel.shape[-1])
            more["window"] = layer.window
        if isinstance(op, Conv2D):
            kind, more["groups"] = "conv", op.groups
        return self.graph.add(kind, [x, w, b], shape, **more, activation=activation)


class _Int8(_Writer):
    """Writes layers with int8 where ranges of their inputs and outputs are known."""

    def __init__(self, network: Network, weights: Mapping[str, np.ndarray], ranges: Ranges) -> None:
        super().__init__(network, weights)
        self.ranges = ranges

    def ended(self, y: Value, name: str, node: Node | None = None, *inputs: Value) -> Value:
        return self.ranges.quantize(self.graph, name, y, node, *inputs)

    def kernel(
        self, layer: str, kernel: np.ndarray, factors: np.ndarray | None, bias: np.ndarray | None, x: Value
    ) -> Value:
        return self.ranges.kernel(self.graph, layer, kernel, factors, bias, x)

    def written(self, layer: Layer, *x: Value) -> Value:
        graph, ranges = self.graph, self.ranges
        if (affine := self._affine(layer, x[0])) is not None:
            return self._scaled(layer, x[0], *affine)
        if not all(map(ranges.quantization, x)):
            return super().written(layer, *x)
        if type(layer.op) is SubSpectralNormalization:
            return self._sub_spectral(layer, x[0])
        if type(layer.op) is SiLU:
            return graph.binary("mul", x[0], ranges.apply(graph, graph.unary("sigmoid", x[0]), FIXED[Sigmoid]))
        if type(layer.op) is Add:  # sums between are quantized, too
            sums = [*x[:1], *x[1:-1]]
            y = reduce(lambda a, b: ranges.apply(graph, graph.binary("add", a, b), ranges.of_sum(a, b)), sums)
            return graph.binary("add", y, x[-1]) if len(x) > 1 else y
        return super().written(layer, *x)

    def _affine(self, layer: Layer, x: Value) -> tuple[np.ndarray, np.ndarray] | None:
        """Factor and offset of each channel, if the op is of that kind, and input and output are quantized."""
        known = self.ranges.quantization(x) is not None and f"{layer.name}/activations" in self.ranges.records
        if type(layer.op) not in AFFINE or not known:
            return None
        both = [np.asarray(a, float) for a in AFFINE[type(layer.op)](layer)]
        if any(a.size > 1 and a.shape[-1] < a.size for a in both):  # not alike everywhere in a channel
            return None
        factor, offset = (np.broadcast_to(a.ravel(), x.shape[-1]) for a in both)
        return factor, offset

    def _scaled(self, layer: Layer, x: Value, factor: np.ndarray, offset: np.ndarray) -> Value:
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
        self, layer: Layer, x: Value, factor: np.ndarray, offset: np.ndarray, activation: str | None = None
    ) -> Value:
        kernel = self.kernel(layer.name, factor.reshape(1, 1, 1, -1), None, offset, x)
        bias, window = self.graph.constant(np.float32(offset), "bias"), Window.pointwise(*x.shape[1:3])
        shape = (1, *window.output, kernel.shape[-1])
        return self.graph.add("depthwise", [x, kernel, bias], shape, window=window, activation=activation)

    def _moved(self, x: Value, method: str, setting: Sequence[int]) -> Value:
        """`x` reshaped or transposed, in the same integers."""
        quantization = self.ranges.quantization(x)
        assert quantization is not None
        return self.ranges.apply(self.graph, getattr(self.graph, method)(x, setting), quantization)

    def _sub_spectral(self, layer: Layer, x: Value) -> Value:
        """A factor for each row and channel: rows are moved to the channels and back."""
        height, width, channels = layer.shape
        factor, offset = (np.repeat(a, height // len(a), 0).ravel() for a in scale_and_shift(layer))
        y = self._moved(self._moved(x, "transpose", (0, 2, 1, 3)), "reshape", (1, width, height * channels))
        y = self.ended(self._pointwise(layer, y, factor, offset), layer.name)
        return self._moved(self._moved(y, "reshape", (width, height, channels)), "transpose", (0, 2, 1, 3))
