"""Networks as inference graphs: the operations that runtimes such as LiteRT and ONNX Runtime have, in the order they
run.

BatchNormalization is folded, dropout left out, and tensors are quantized as in training, from its range statistics.
Activations have a batch axis and channels last. `HANDLERS` has one function an op, which gets the graph, the layer
and its inputs, and returns the layer's output. Writers of formats translate a graph operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, ClassVar

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

from .pointwise import ACTIVATIONS, ARITHMETIC
from .weights import Weights

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

    Arguments:
    - `name`: of the network.
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

    def conv(
        self, x: Value, kernel: Value, bias: Value | None, window: Window, filters: int, groups: int = 1,
        activation: str | None = None,
    ) -> Value:  # fmt: skip
        """Convolution with a kernel (height, width, input channels / groups, filters)."""
        attributes = {"window": window, "groups": groups, "activation": activation}
        return self._add("conv", (x, kernel, *_given(bias)), (1, *window.output, filters), **attributes)

    def depthwise(
        self, x: Value, kernel: Value, bias: Value | None, window: Window, activation: str | None = None
    ) -> Value:
        """Convolution of each channel with kernels of its own: (height, width, 1, channels times kernels a channel)."""
        shape = (1, *window.output, kernel.shape[-1])
        return self._add("depthwise", (x, kernel, *_given(bias)), shape, window=window, activation=activation)

    def transposed_conv(self, x: Value, kernel: Value, window: Window) -> Value:
        """The gradient of a convolution with this window: each pixel adds the kernel (height, width, channels, filters)
        times its values, and the window's padding is cut off."""
        shape = (1, window.height, window.width, kernel.shape[-1])
        return self._add("transposed_conv", (x, kernel), shape, window=window)

    def dense(self, x: Value, kernel: Value, bias: Value | None, activation: str | None = None) -> Value:
        """Product with a kernel (inputs, outputs)."""
        shape = (*x.shape[:-1], kernel.shape[-1])
        return self._add("dense", (x, kernel, *_given(bias)), shape, activation=activation)

    def unary(self, kind: str, x: Value, **attributes: Any) -> Value:
        """One of relu, relu6, sigmoid, tanh, exp, log, sqrt, abs, neg, round, softmax, and others that writers have."""
        return self._add(kind, (x,), x.shape, **attributes)

    def binary(self, kind: str, x: Value, y: Value) -> Value:
        """One of add, sub, mul, div, maximum, minimum, with sizes of 1 broadcast."""
        return self._add(kind, (x, y), np.broadcast_shapes(x.shape, y.shape))

    def scalar(self, kind: str, x: Value, value: Any) -> Value:
        """`binary` with float32 values."""
        return self.binary(kind, x, self.constant(np.asarray(value, np.float32)))

    def pad(self, x: Value, sides: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Value:
        """Pad each axis, the batch's among them, by (before, after). `mode`: constant, reflect or symmetric."""
        if not any(map(any, sides)):
            return x
        shape = tuple(n + sum(both) for n, both in zip(x.shape, sides, strict=True))
        return self._add("pad", (x,), shape, sides=tuple(map(tuple, sides)), value=value, mode=mode)

    def max_pool(self, x: Value, window: Window) -> Value:
        return self._add("max_pool", (x,), (1, *window.output, x.shape[-1]), window=window)

    def average_pool(self, x: Value, window: Window) -> Value:
        """The mean of each window without its padding."""
        return self._add("average_pool", (x,), (1, *window.output, x.shape[-1]), window=window)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
        """One of mean, sum, max over axes from 1 on."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keep or axis not in axes)
        return self._add(f"reduce_{kind}", (x,), shape, axes=tuple(axes), keep=keep)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Change the shape of each example, in C order."""
        shape = (1, *shape)
        assert prod(shape) == prod(x.shape)
        return x if shape == x.shape else self._add("reshape", (x,), shape)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Reorder the axes; the batch's stays the first."""
        return self._add("transpose", (x,), tuple(x.shape[axis] for axis in order), order=tuple(order))

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """`sizes` elements of each axis but the batch's, from `starts` on, every `steps`-th (default 1)."""
        steps = tuple(steps or (1,) * len(sizes))
        last = [start + (size - 1) * step for start, size, step in zip(starts, sizes, steps, strict=True)]
        ends = [end + (1 if step > 0 else -1) for end, step in zip(last, steps, strict=True)]
        ends = tuple(end if end >= 0 else -n - 1 for end, n in zip(ends, x.shape[1:], strict=True))  # before the first
        return self._add("slice", (x,), (1, *sizes), starts=tuple(starts), ends=ends, steps=steps)

    def concatenate(self, values: Sequence[Value], axis: int = -1) -> Value:
        axis %= len(values[0].shape)
        total = sum(value.shape[axis] for value in values)
        shape = tuple(total if i == axis else n for i, n in enumerate(values[0].shape))
        return self._add("concatenate", tuple(values), shape, axis=axis)

    def quantize(self, x: Value, quantization: Quantization) -> Value:
        """Round to the values that int8 stand for."""
        return self._add("quantize", (x,), x.shape, quantization=quantization)

    def add(self, kind: str, inputs: Sequence[Value], shape: Sequence[int], **attributes: Any) -> Value:
        """Any other kind, whose output has this shape."""
        return self._add(kind, tuple(inputs), tuple(shape), **attributes)

    def _add(self, kind: str, inputs: tuple[Value, ...], shape: Shape, **attributes: Any) -> Value:
        output = Value(self._unique(f"{self.layer}/{kind}"), tuple(map(int, shape)))
        self.operations.append(Operation(kind, inputs, output, attributes))
        return output

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique


def _given(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)


@dataclass(frozen=True, eq=False)
class Expression:
    """A value that Python's operators compute with."""

    graph: InferenceGraph
    value: Value

    def _with(self, kind: str, other: Expression | float, swapped: bool = False) -> Expression:
        g = self.graph
        number = other.value if isinstance(other, Expression) else g.constant(np.float32(other), "number")
        pair = (number, self.value) if swapped else (self.value, number)
        return Expression(g, g.binary(kind, *pair))

    def unary(self, kind: str) -> Expression:
        return Expression(self.graph, self.graph.unary(kind, self.value))

    def __add__(self, other: Any) -> Expression:
        return self._with("add", other)

    def __radd__(self, other: float) -> Expression:
        return self._with("add", other, True)

    def __sub__(self, other: Any) -> Expression:
        return self._with("sub", other)

    def __rsub__(self, other: float) -> Expression:
        return self._with("sub", other, True)

    def __mul__(self, other: Any) -> Expression:
        return self._with("mul", other)

    def __rmul__(self, other: float) -> Expression:
        return self._with("mul", other, True)

    def __truediv__(self, other: Any) -> Expression:
        return self._with("div", other)

    def __rtruediv__(self, other: float) -> Expression:
        return self._with("div", other, True)

    def __pow__(self, power: int) -> Expression:
        return self if power == 1 else self * self ** (power - 1)

    def __neg__(self) -> Expression:
        return self.unary("neg")


class Functions:
    """The functions that the table calls, as `torch` and `keras.ops` have them."""

    def __getattr__(self, name: str) -> Callable[[Expression], Expression]:
        return lambda x: x.unary(name)

    def clip(self, x: Expression, low: float, high: float) -> Expression:
        if (low, high) in ((0, inf), (0, 6)):
            return x.unary("relu6" if high == 6 else "relu")
        x = x if low == -inf else x._with("maximum", low)
        return x if high == inf else x._with("minimum", high)

    def maximum(self, a: Expression, b: Expression) -> Expression:
        return a._with("maximum", b)

    def minimum(self, a: Expression, b: Expression) -> Expression:
        return a._with("minimum", b)

    def square(self, x: Expression) -> Expression:
        return x * x

    def expm1(self, x: Expression) -> Expression:
        return x.unary("exp") - 1.0

    def log1p(self, x: Expression) -> Expression:
        return (x + 1.0).unary("log")


def _by_formula(function: Callable[..., Any]) -> Callable[..., Value]:
    def handle(graph: InferenceGraph, layer: Any, *inputs: Value) -> Value:
        """Operands of lower rank get sizes of 1 behind the batch's axis."""
        rank = 1 + len(layer.node.shape)
        weights = [graph.constant(a.astype(np.float32), role) for role, a in layer.weights.items()]
        aligned = [graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape[1:]) for x in inputs]
        operands = [Expression(graph, x) for x in (*aligned, *weights)]
        return function(Functions(), layer.node.op, *operands).value

    return handle


def _aligned(kind: str) -> Callable[..., Value]:
    """The formats' own operator, whose operands have as many axes as the result."""

    def handle(graph: InferenceGraph, layer: Any, *inputs: Value) -> Value:
        rank = 1 + len(layer.node.shape)
        aligned = [graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape[1:]) for x in inputs]
        return graph.add(kind, aligned, (1, *layer.node.shape))

    return handle


def _gelu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    if layer.node.op.approximate:
        return _by_formula(ACTIVATIONS[GELU])(graph, layer, x)
    return graph.unary("gelu", x)


def _leaky(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    return graph.unary("leaky_relu", x, alpha=layer.node.op.negative_slope)


def _prelu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    alpha = graph.constant(layer.weights["alpha"].astype(np.float32), "alpha")
    return graph.add("prelu", [x, alpha], x.shape)


def _elu(graph: InferenceGraph, layer: Any, x: Value) -> Value:
    """The formats' own operator, whose alpha is 1; below 0 it is multiplied, as SELU is."""
    op, y = layer.node.op, graph.unary("elu", x)
    if op.alpha != 1:
        y = graph.binary("add", graph.unary("relu", x), graph.scalar("mul", graph.scalar("minimum", y, 0), op.alpha))
    return y if op.scale == 1 else graph.scalar("mul", y, op.scale)


POINTWISE: dict[type[Op], Callable[..., Value]] = {
    op: _by_formula(function) for op, function in (ACTIVATIONS | ARITHMETIC).items()
} | {
    ELU: _elu, GELU: _gelu, HardSwish: lambda graph, layer, x: graph.unary("hard_swish", x), LeakyReLU: _leaky,
    PReLU: _prelu, SELU: _elu, BroadcastTo: _aligned("broadcast_to"), Greater: _aligned("greater"),
    Less: _aligned("less"), Where: _aligned("where"),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A layer that a handler writes.

    Arguments:
    - `node`: its op, inputs and output shape.
    - `shapes`: of its inputs, without the batch.
    - `weights`: its arrays by role, float64.
    """

    node: Node
    shapes: list[tuple[int, ...]]
    weights: dict[str, np.ndarray]


def scale_and_shift(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the offset of a BatchNormalization, by channel."""
    w, op = layer.weights, layer.node.op
    assert isinstance(op, BatchNormalization)
    scale = w["gamma"] / np.sqrt(w["moving_variance"] + op.epsilon)
    return scale, w["beta"] - w["moving_mean"] * scale


# Ops that multiply each channel by a factor and add an offset, with both. In int8 they are depthwise convolutions.
AFFINE: dict[type[Op], Callable[[Layer], tuple[Any, Any]]] = {
    BatchNormalization: scale_and_shift,
    Bias: lambda layer: (1.0, layer.weights["bias"]),
    HardSigmoid: lambda layer: (layer.node.op.alpha, layer.node.op.beta),  # then it is clipped to [0, 1]
    Rescaling: lambda layer: (layer.node.op.scale, layer.node.op.offset),
    Scale: lambda layer: (layer.weights["scale"], 0.0),
}


def _batchnorm(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    scale, shift = scale_and_shift(layer)
    return graph.scalar("add", graph.scalar("mul", x, scale), shift)


def _sub_spectral(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """Scales and shifts by rows of the image, each repeated for the rows of its sub-band."""
    scale, shift = (np.repeat(a, layer.node.shape[0] // len(a), 0)[:, None] for a in scale_and_shift(layer))
    return graph.scalar("add", graph.scalar("mul", x, scale), shift)


def _sum(graph: InferenceGraph, layer: Layer, x: Value, *others: Value) -> Value:
    for other in others:
        x = graph.binary("add", x, other)
    return x


def _rounded(graph: InferenceGraph, x: Value, step: float) -> Value:
    """Multiples of `step`."""
    return graph.scalar("mul", graph.unary("round", graph.scalar("mul", x, 1 / step)), step) if step else x


def _coupling(graph: InferenceGraph, layer: Layer, x: Value, f: Value) -> Value:
    assert isinstance(layer.node.op, Coupling)
    return graph.binary("add", x, _rounded(graph, f, layer.node.op.step))


def _global_average(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    return graph.reduce("mean", x, (1, 2), keep=len(layer.node.shape) > 1)


def _reduction(kind: str) -> Callable[..., Value]:
    def handle(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
        op = layer.node.op
        assert isinstance(op, Mean | Sum | Max)
        return graph.reduce(kind, x, [axis + 1 for axis in op.reduced(layer.shapes[0])], op.keepdims)

    return handle


def _pooling(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    op = layer.node.op
    assert isinstance(op, MaxPooling2D | AveragePooling2D)
    pool = graph.max_pool if isinstance(op, MaxPooling2D) else graph.average_pool
    return pool(x, op.window(layer.shapes[0]))


def _space_to_depth(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    height, width, channels = layer.node.shape
    assert isinstance(layer.node.op, SpaceToDepth)
    size = layer.node.op.size
    x = graph.reshape(x, (height, size, width, size, channels // size**2))
    return graph.reshape(graph.transpose(x, (0, 1, 3, 2, 4, 5)), (height, width, channels))


def _slice(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, Slice)
    ranges = layer.node.op.ranges(layer.shapes[0])
    return graph.slice(x, [r.begin for r in ranges], [r.size for r in ranges], [r.stride for r in ranges])


def _pad(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    op = layer.node.op
    assert isinstance(op, Pad)
    return graph.pad(x, ((0, 0), *op.padding), op.value, op.mode)


def _transpose(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, Transpose)
    return graph.transpose(x, (0, *(axis % len(x.shape) for axis in layer.node.op.axes)))


def _slice_channels(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    op, shape = layer.node.op, layer.node.shape
    assert isinstance(op, SliceChannels)
    return graph.slice(x, (*(0 for _ in shape[:-1]), op.start), shape)


def _pad_channels(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, PadChannels)
    return graph.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(layer.node.op.before, layer.node.op.after)])


def _transposed_conv(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """One group without dilation, which all formats have: kernels get the zeros that stand for them."""
    op = layer.node.op
    assert isinstance(op, Conv2DTranspose)
    window, kernel = op.window(layer.shapes[0]), layer.weights["kernel"]
    (height, width), channels = window.kernel, x.shape[-1]
    reach = [(n - 1) * dilation + 1 for n, dilation in zip(window.kernel, window.dilation, strict=True)]
    whole = np.zeros((*reach, channels, op.filters), np.float32)
    inputs, filters = channels // op.groups, op.filters // op.groups
    for group in range(op.groups):
        rows, columns = (slice(group * n, (group + 1) * n) for n in (inputs, filters))
        whole[:: window.dilation[0], :: window.dilation[1], rows, columns] = kernel[..., columns]
    assert whole[:: window.dilation[0], :: window.dilation[1]].shape[:2] == (height, width)
    y = graph.transposed_conv(x, graph.constant(whole, "kernel"), window)
    return graph.scalar("add", y, layer.weights["bias"]) if op.use_bias else y


def _local_response(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    op = layer.node.op
    assert isinstance(op, LocalResponseNormalization)
    return graph.unary("local_response", x, size=op.size, factor=op.factor, beta=op.beta, bias=op.bias)


# Settings that Resize shares with TFLite's and ONNX's operators: (interpolation, coordinates, rounding)
NATIVE = {
    *(("bilinear", coordinates, rounding) for coordinates in ("half_pixel", "asymmetric", "align_corners")
      for rounding in ROUNDINGS),
    ("nearest", "half_pixel", "round_prefer_ceil"), ("nearest", "asymmetric", "floor"),
    ("nearest", "align_corners", "round_prefer_ceil"),
}  # fmt: skip


def _resize(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The formats' own operator where it means the same, else matrix products."""
    op = layer.node.op
    assert isinstance(op, Resize | UpSampling2D)
    op = op.as_resize(layer.shapes[0]) if isinstance(op, UpSampling2D) else op
    how = (op.interpolation, op.coordinates, op.rounding)
    size = op.output_shape(layer.shapes[0])[:2]
    if how not in NATIVE or op.scale is not None or (op.coordinates == "align_corners" and 1 in size):
        return _linear_map(graph, layer, x)
    return graph.add("resize", [x], (1, *size, x.shape[-1]), how=how)


def _linear_map(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """Resizing and adaptive means as two matrix products: exact, whatever the coordinates."""
    op = layer.node.op
    assert isinstance(op, AdaptiveAveragePooling2D | Resize | UpSampling2D)
    rows, columns = (graph.constant(m.T.astype(np.float32), "matrix") for m in op.matrices(layer.shapes[0]))
    x = graph.dense(graph.transpose(x, (0, 2, 3, 1)), rows, None)  # (width, channels, height)
    x = graph.dense(graph.transpose(x, (0, 3, 2, 1)), columns, None)  # (height, channels, width)
    return graph.transpose(x, (0, 1, 3, 2))


def _constant(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The weight, for as many examples as there are: added to a 0 of each."""
    largest = graph.unary("abs", graph.reduce("max", x, range(1, len(x.shape))))
    zero = graph.reshape(graph.scalar("minimum", largest, 0), (1,) * len(layer.node.shape))
    return graph.scalar("add", zero, layer.weights["value"])


def _relu(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, ReLU)
    if (most := layer.node.op.max_value) not in (None, 6):
        return graph.scalar("minimum", graph.unary("relu", x), most)
    return graph.unary("relu6" if most else "relu", x)


def _normalized(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """The values of each set of an example with mean 0 and deviation 1, times gamma, plus beta."""
    op, shape = layer.node.op, layer.node.shape
    assert isinstance(op, LayerNormalization | GroupNormalization)
    span, groups = op.sets(shape)
    parts = graph.reshape(x, (prod(shape[:-1]) // span, span, groups, shape[-1] // groups))
    centred = graph.binary("sub", parts, graph.reduce("mean", parts, (2, 4)))
    variance = graph.reduce("mean", graph.binary("mul", centred, centred), (2, 4))
    inverse = graph.unary("rsqrt", graph.scalar("add", variance, op.epsilon))
    y = graph.reshape(graph.binary("mul", centred, inverse), shape)
    y = graph.scalar("mul", y, layer.weights["gamma"]) if "gamma" in layer.weights else y
    return graph.scalar("add", y, layer.weights["beta"]) if "beta" in layer.weights else y


HANDLERS: dict[type[Op], Callable[..., Value]] = POINTWISE | {
    Add: _sum,
    AdaptiveAveragePooling2D: _linear_map,
    AveragePooling2D: _pooling,
    BatchNormalization: _batchnorm,
    Conv2DTranspose: _transposed_conv,
    Concatenate: lambda graph, layer, *x: graph.concatenate(x),
    Coupling: _coupling,
    Dropout: lambda graph, layer, x: x,
    Flatten: lambda graph, layer, x: graph.reshape(x, layer.node.shape),
    GlobalAveragePooling2D: _global_average,
    GlobalMaxPooling2D: _reduction("max"),
    Constant: _constant,
    MatMul: lambda graph, layer, a, b: graph.add("matmul", [a, b], (1, *layer.node.shape)),
    MaxPooling2D: _pooling,
    GroupNormalization: _normalized,
    LayerNormalization: _normalized,
    LocalResponseNormalization: _local_response,
    Max: _reduction("max"),
    Mean: _reduction("mean"),
    Pad: _pad,
    PadChannels: _pad_channels,
    ReLU: _relu,
    Resize: _resize,
    Reshape: lambda graph, layer, x: graph.reshape(x, layer.node.shape),
    Slice: _slice,
    SliceChannels: _slice_channels,
    LogSoftmax: lambda graph, layer, x: graph.unary("log_softmax", x),
    Softmax: lambda graph, layer, x: graph.unary("softmax", x),
    SpaceToDepth: _space_to_depth,
    SpatialDropout2D: lambda graph, layer, x: x,
    Stream: lambda graph, layer, x: _rounded(graph, x, layer.node.op.step),
    SubSpectralNormalization: _sub_spectral,
    Sum: _reduction("sum"),
    UpSampling2D: _resize,
    Transpose: _transpose,
    ZeroPadding2D: lambda graph, layer, x: graph.pad(x, ((0, 0), *layer.node.op.sides, (0, 0))),
}  # fmt: skip


LARGEST_BIAS = 1 << 30  # of an int32 bias, with room for the sum of products
_SCALE, _ZERO, _LOW, _HIGH = (FIELDS.index(name) for name in ("scale", "zero", "low", "high"))
_NEXT_LOW, _NEXT_HIGH = (FIELDS.index(name) for name in ("next_low", "next_high"))


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
        self, graph: InferenceGraph, layer: str, kernel: np.ndarray, axis: int, factors: np.ndarray | None,
        bias: np.ndarray | None, x: Value,
    ) -> Value:  # fmt: skip
        """The constant of a kernel.

        Arguments:
        - `axis`: of the output channels, each of which has a scale.
        - `factors`: what a folded BatchNormalization multiplies the channels by. Integers of a kernel that was trained
          with one range stay as they were: the factors go into the scales.
        - `bias`, `x`: what is added, and the input; int32 must hold bias / (scale of x * scale of the kernel).
        """
        others = tuple(i for i in range(kernel.ndim) if i != axis)
        factors = np.ones(kernel.shape[axis]) if factors is None else factors
        folded = kernel * np.expand_dims(factors, others)
        quantization = self._quantizations.get(x)
        if quantization is None:  # a float32 layer
            return graph.constant(np.float32(folded), "kernel")
        scales = np.abs(kernel).max(others) / 127
        if (levels := _levels(self.records.get(f"{layer}/weights"))) is not None:
            scales = np.full_like(scales, np.abs(kernel).max() / levels)
        scales = np.where(scales > 0, scales, 1) * np.where(factors != 0, np.abs(factors), 1)
        if bias is not None:
            scales = np.maximum(scales, np.abs(bias) / (quantization.scale.astype(np.float64) * LARGEST_BIAS))
        own = Quantization(scales.astype(np.float32), 0, axis)
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


LINEAR = (Conv2D, DepthwiseConv2D, Dense)
SUPPORTED = (*HANDLERS, *LINEAR)


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
    unknown = {type(n.op).__name__: n.name for n in network.nodes.values() if type(n.op) not in SUPPORTED}
    if unknown:
        ops = ", ".join(f"{op} (layer '{layer}')" for op, layer in unknown.items())
        raise FormatError(f"Inference formats have no counterpart here for: {ops}. Save it with Model.save instead.")
    graph, found = InferenceGraph(network.name), None if ranges is None else Ranges(ranges)
    values = {name: graph.input(name, shape) for name, shape in network.inputs.items()}
    if found is not None:
        values = {name: found.quantize(graph, name, value) for name, value in values.items()}
    for stage in fuse(network):
        graph.layer = stage.output.name
        x = [values[name] for name in stage.inputs]
        for nodes in steps(stage):
            x = [_Step(graph, network, weights, nodes, found).write(x)]
        values[stage.output.name] = x[0]
    graph.outputs |= {name: values[name] for name in network.outputs}
    return graph


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


@dataclass(frozen=True)
class _Step:
    """Layers on their way into the graph, as one operation."""

    graph: InferenceGraph
    network: Network
    weights: Mapping[str, np.ndarray]
    nodes: list[Node]
    ranges: Ranges | None

    def write(self, x: list[Value]) -> Value:
        layer, last, ranges = self._layer(self.nodes[0]), self.nodes[-1], self.ranges
        if isinstance(layer.node.op, LINEAR):
            y = self._linear(layer, x[0])
        elif ranges is not None and (affine := self._affine(layer, x[0])) is not None:
            y = self._scaled(x[0], *affine, ranges)
        elif ranges is not None and type(layer.node.op) in self._of_parts and all(map(ranges.quantization, x)):
            y = self._of_parts[type(layer.node.op)](self, layer, ranges, *x)
        else:
            y = HANDLERS[type(layer.node.op)](self.graph, layer, *x)
        return y if ranges is None else ranges.quantize(self.graph, last.name, y, last, *x)

    def _layer(self, node: Node) -> Layer:
        prefix = f"{node.name}/"
        names = [name for name in self.network.parameters if name.startswith(prefix)]
        own = {name.removeprefix(prefix): self.weights[name].astype(np.float64) for name in names}
        return Layer(node, self.network.input_shapes(node.inputs), own)

    def _linear(self, layer: Layer, x: Value) -> Value:
        op, kernel, bias = layer.node.op, layer.weights["kernel"], layer.weights.get("bias")
        scale = activation = None
        for node in self.nodes[1:]:
            if isinstance(node.op, ReLU):
                activation = "relu6" if node.op.max_value else "relu"
            else:
                scale, shift = scale_and_shift(self._layer(node))
                bias = shift if bias is None else bias * scale + shift
        if isinstance(op, DepthwiseConv2D):
            kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
        axis = kernel.ndim - 1
        graph = self.graph
        if self.ranges is None:
            others = [i for i in range(kernel.ndim) if i != axis]
            folded = kernel if scale is None else kernel * np.expand_dims(scale, others)
            w = graph.constant(folded.astype(np.float32), "kernel")
        else:
            w = self.ranges.kernel(graph, layer.node.name, kernel, axis, scale, bias, x)
        b = None if bias is None else graph.constant(np.float32(bias), "bias")
        if isinstance(op, Dense):
            return graph.dense(x, w, b, activation)
        window = op.window(layer.shapes[0])  # type: ignore[attr-defined]
        if isinstance(op, DepthwiseConv2D):
            return graph.depthwise(x, w, b, window, activation)
        return graph.conv(x, w, b, window, kernel.shape[-1], op.groups, activation)  # type: ignore[attr-defined]

    def _affine(self, layer: Layer, x: Value) -> tuple[np.ndarray, np.ndarray] | None:
        """Factor and offset of each channel, if the op is of that kind, and input and output are quantized."""
        assert self.ranges is not None
        known = self.ranges.quantization(x) is not None and f"{layer.node.name}/activations" in self.ranges.records
        if type(layer.node.op) not in AFFINE or not known:
            return None
        both = [np.asarray(a, float) for a in AFFINE[type(layer.node.op)](layer)]
        if any(a.size > 1 and a.shape[-1] < a.size for a in both):  # not alike everywhere in a channel
            return None
        factor, offset = (np.broadcast_to(a.ravel(), x.shape[-1]) for a in both)
        return factor, offset

    def _scaled(self, x: Value, factor: np.ndarray, offset: np.ndarray, ranges: Ranges) -> Value:
        """Depthwise convolutions with a kernel of one pixel, whose integers are 127. One is enough, unless the op is a
        HardSigmoid: relu6(6 x) / 6."""
        shape = x.shape
        if len(shape) != 4:
            x = self._reshaped(x, (1, prod(shape[:-1]), shape[-1]), ranges)
        if isinstance(self.nodes[0].op, HardSigmoid):
            x = ranges.apply(self.graph, self._pointwise(x, 6 * factor, 6 * offset, ranges, "relu6"), SIX)
            factor, offset = np.full_like(factor, 1 / 6), np.zeros_like(offset)
        y = self._pointwise(x, factor, offset, ranges)
        if len(shape) == 4:
            return y
        return self._reshaped(ranges.quantize(self.graph, self.nodes[0].name, y), shape[1:], ranges)

    def _pointwise(
        self, x: Value, factor: np.ndarray, offset: np.ndarray, ranges: Ranges, activation: str | None = None
    ) -> Value:
        kernel = ranges.kernel(self.graph, self.nodes[0].name, factor.reshape(1, 1, 1, -1), 3, None, offset, x)
        bias = self.graph.constant(np.float32(offset), "bias")
        return self.graph.depthwise(x, kernel, bias, Window.pointwise(*x.shape[1:3]), activation)

    def _reshaped(self, x: Value, shape: Sequence[int], ranges: Ranges) -> Value:
        quantization = ranges.quantization(x)
        assert quantization is not None
        return ranges.apply(self.graph, self.graph.reshape(x, shape), quantization)

    def _silu(self, layer: Layer, ranges: Ranges, x: Value) -> Value:
        gate = ranges.apply(self.graph, self.graph.unary("sigmoid", x), FIXED[Sigmoid])
        return self.graph.binary("mul", x, gate)

    def _sum(self, layer: Layer, ranges: Ranges, x: Value, *others: Value) -> Value:
        for other in others[:-1]:
            x = ranges.apply(self.graph, self.graph.binary("add", x, other), ranges.of_sum(x, other))
        return self.graph.binary("add", x, others[-1]) if others else x

    def _sub_spectral(self, layer: Layer, ranges: Ranges, x: Value) -> Value:
        """A factor for each row and channel: rows are moved to the channels and back."""
        height, width, channels = layer.node.shape
        factor, offset = (np.repeat(a, height // len(a), 0).ravel() for a in scale_and_shift(layer))
        y = self._transposed(x, (0, 2, 1, 3), ranges)
        y = self._pointwise(self._reshaped(y, (1, width, height * channels), ranges), factor, offset, ranges)
        y = ranges.quantize(self.graph, layer.node.name, y)
        return self._transposed(self._reshaped(y, (width, height, channels), ranges), (0, 2, 1, 3), ranges)

    def _transposed(self, x: Value, order: Sequence[int], ranges: Ranges) -> Value:
        quantization = ranges.quantization(x)
        assert quantization is not None
        return ranges.apply(self.graph, self.graph.transpose(x, order), quantization)

    # Ops of several operations, between which values are quantized, too
    _of_parts: ClassVar[dict[type[Op], Callable[..., Value]]] = {
        Add: _sum, SiLU: _silu, SubSpectralNormalization: _sub_spectral,
    }  # fmt: skip
