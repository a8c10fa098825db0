"""Keras's version of a network, a functional model with the same weights whose layers have the same names, and its
files.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    BatchNormalization,
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
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    LogSoftmax,
    MatMul,
    Max,
    MaxPooling2D,
    Mean,
    Op,
    Pad,
    PadChannels,
    ReLU,
    Reshape,
    Resize,
    Slice,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Sum,
    Take,
    Transpose,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.arithmetic import WithWeight
from edgelearn.ops.pooling import Reduction
from edgelearn.ops.resize import LinearMap
from edgelearn.ops.shapes import positions
from edgelearn.ops.window import Window, pair

from .pointwise import ACTIVATIONS, ARITHMETIC
from .safetensors import ModelFile
from .weights import in_keras_order, only_or_all, without_softmax

Tensor = Any


class MovingBatchNormalization(layers.BatchNormalization):
    """BatchNormalization that normalises with its stored statistics in training, too."""

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        return super().call(inputs, training=False, mask=mask)


def to_keras(
    network: Network,
    weights: Mapping[str, np.ndarray] | None = None,
    batchnorm: Literal["moving", "batch"] = "moving",
    logits: bool = False,
) -> keras.Model:
    """The network as a Keras model for inputs (n, *input_shape); several inputs and outputs are dictionaries by name.

    Arguments:
    - `network`: its `trainable` parameters are the model's trainable variables.
    - `weights`: arrays by name (default: `initialize(0)`).
    - `batchnorm`: `"moving"` normalises with the stored statistics in training, too; `"batch"` is Keras's way.
    - `logits`: leave a Softmax or LogSoftmax at an output out.

    Raises FormatError for an op that has no counterpart here.
    """
    nodes, ends = without_softmax(network) if logits else (list(network.nodes.values()), network.outputs)
    several = len(network.inputs) > 1
    inputs = {name: keras.Input(shape, name=name if several else None) for name, shape in network.inputs.items()}
    values: dict[str, Any] = dict(inputs)
    norm = MovingBatchNormalization if batchnorm == "moving" else layers.BatchNormalization
    for node in nodes:
        if type(node.op) not in HANDLERS:
            raise FormatError(f"Keras's version of a network has no {type(node.op).__name__}.")
        builder = _Builder(network, node, norm)
        values[node.name] = HANDLERS[type(node.op)](builder, *(values[name] for name in node.inputs))
    outputs = {name: values[end] for name, end in zip(network.outputs, ends, strict=True)}
    model = keras.Model(inputs if several else values[next(iter(inputs))], only_or_all(outputs))
    weights = network.initialize(0) if weights is None else weights
    for name, variable in keras_variables(model, network).items():
        variable.assign(np.reshape(in_keras_order(network, name, weights[name]), variable.shape))
        if network.parameters[name].weight.trainable:
            variable.trainable = name in network.trainable
    return model


def keras_variables(model: keras.Model, network: Network) -> dict[str, keras.Variable]:
    """Variables of the model by the names of the network's parameters. Shapes are the network's, but for
    SubSpectralNormalization, where they are flat, and for kernels of Conv2DTranspose, whose last two axes are swapped
    (`edgelearn.interop.weights.in_keras_order`)."""
    found, made = {}, {layer.name for layer in model.layers}  # layers that no output depends on are left out
    for name, parameter in network.parameters.items():
        if parameter.layer not in made:
            continue
        layer = model.get_layer(parameter.layer)
        found[name] = next(v for v in layer.weights if v.name in (parameter.role, f"depthwise_{parameter.role}"))
    return found


class _Builder:
    """A layer under construction."""

    def __init__(self, network: Network, node: Node, norm: type[layers.BatchNormalization]) -> None:
        self.network, self.node, self.op, self.norm = network, node, node.op, norm

    @property
    def window(self) -> Window:
        assert isinstance(self.op, Conv2D | Conv2DTranspose | DepthwiseConv2D | MaxPooling2D | AveragePooling2D)
        return self.op.window(*self.network.input_shapes(self.node.inputs))

    def padding(self) -> tuple[str, tuple]:
        """Keras's name for the padding, and zeros to add before where it has none."""
        window = self.window
        same = Window.of((window.height, window.width, 1), window.kernel, window.strides, "same", window.dilation)
        if window.padding == ((0, 0), (0, 0)):
            return "valid", ()
        return ("same", ()) if same.padding == window.padding else ("valid", window.padding)


def _convolution(b: _Builder, x: Tensor) -> Tensor:
    op, window, (padding, zeros) = b.op, b.window, b.padding()
    skips = isinstance(op, DepthwiseConv2D) and window.strides[0] != window.strides[1]  # TensorFlow has no such kernel
    if skips:
        padding, zeros = "valid", window.padding
    x = layers.ZeroPadding2D(zeros)(x) if zeros else x
    strides = (1, 1) if skips else window.strides
    options = {"strides": strides, "padding": padding, "dilation_rate": window.dilation, "name": b.node.name}
    if isinstance(op, DepthwiseConv2D):
        y = layers.DepthwiseConv2D(
            window.kernel, depth_multiplier=op.depth_multiplier, use_bias=op.use_bias, **options
        )(x)
        return y[:, :: window.strides[0], :: window.strides[1]] if skips else y
    assert isinstance(op, Conv2D)
    return layers.Conv2D(op.filters, window.kernel, groups=op.groups, use_bias=op.use_bias, **options)(x)


def _transposed_convolution(b: _Builder, x: Tensor) -> Tensor:
    """Pixels that padding in numbers cuts off are cut off afterwards."""
    op, window = b.op, b.window
    assert isinstance(op, Conv2DTranspose)
    if op.groups > 1:
        raise FormatError(f"Keras has no transposed convolution in groups, which '{b.node.name}' is.")
    named = isinstance(op.padding, str)
    padding = op.padding if isinstance(op.padding, str) else "valid"
    more = op.output_padding if named else op.output_padding or 0
    y = layers.Conv2DTranspose(
        op.filters, window.kernel, window.strides, padding, more, dilation_rate=window.dilation, use_bias=op.use_bias,
        name=b.node.name,
    )(x)  # fmt: skip
    (top, _), (left, _) = window.padding
    return y if named else y[:, top : top + window.height, left : left + window.width]


def _resize(b: _Builder, x: Tensor) -> Tensor:
    """Keras's own layer where it has the same convention and precision, else products with matrices."""
    op = b.op
    assert isinstance(op, Resize)
    usual = (op.coordinates, op.scale) == ("half_pixel", None) and (
        op.rounding == "round_prefer_ceil" or not op.selects
    )
    exact = op.selects or x.dtype == "float32"  # TensorFlow's is always in float32
    return layers.Resizing(*pair(op.size), interpolation=op.interpolation)(x) if usual and exact else _linear_map(b, x)


def _up_sampling(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, UpSampling2D)
    exact = b.op.selects or x.dtype == "float32"
    return layers.UpSampling2D(b.op.size, interpolation=b.op.interpolation)(x) if exact else _linear_map(b, x)


def _linear_map(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, LinearMap)
    rows, columns = (matrix.astype(x.dtype) for matrix in b.op.matrices(tuple(x.shape[1:])))
    return ops.einsum("yh,nhwc,xw->nyxc", rows, x, columns)


def _batchnorm(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, BatchNormalization)
    return b.norm(momentum=b.op.momentum, epsilon=b.op.epsilon, name=b.node.name)(x)


def _example_normalization(b: _Builder, x: Tensor) -> Tensor:
    op = b.op
    assert isinstance(op, LayerNormalization | GroupNormalization)
    options = {"epsilon": op.epsilon, "center": op.center, "scale": op.scale, "name": b.node.name}
    if isinstance(op, GroupNormalization):
        return layers.GroupNormalization(op.groups, **options)(x)
    axes: Any = [axis + 1 for axis in positions(op.axis, b.node.shape)]
    return layers.LayerNormalization(axes, **options)(x)


def _local_response(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, LocalResponseNormalization)
    windows = b.op.windows(b.node.shape[-1]).T.astype(x.dtype)
    return x * (b.op.bias + b.op.factor * ops.matmul(ops.square(x), windows)) ** -b.op.beta  # type: ignore[operator]


def _sub_spectral(b: _Builder, x: Tensor) -> Tensor:
    """A sub-band of a channel is a channel of its own."""
    assert isinstance(b.op, SubSpectralNormalization)
    height, width, channels = b.node.shape
    bands = b.op.sub_bands
    x = ops.transpose(ops.reshape(x, (-1, bands, height // bands, width, channels)), (0, 2, 3, 1, 4))
    x = _batchnorm(b, ops.reshape(x, (-1, height // bands, width, bands * channels)))
    x = ops.transpose(ops.reshape(x, (-1, height // bands, width, bands, channels)), (0, 3, 1, 2, 4))
    return ops.reshape(x, (-1, height, width, channels))


def _max_pooling(b: _Builder, x: Tensor) -> Tensor:
    padding, sides = b.padding()
    if sides:
        x = ops.pad(x, ((0, 0), *sides, (0, 0)), constant_values=float("-inf"))
    return layers.MaxPooling2D(b.window.kernel, b.window.strides, padding)(x)


def _average_pooling(b: _Builder, x: Tensor) -> Tensor:
    """Padding counts neither in the sum nor in the number of pixels."""
    padding, sides = b.padding()
    pool = layers.AveragePooling2D(b.window.kernel, b.window.strides, padding)
    if not sides:
        return pool(x)
    inside = b.window.pad(np.ones((1, b.window.height, b.window.width, 1), np.float32))
    shares = ops.average_pool(inside, b.window.kernel, b.window.strides)
    return pool(layers.ZeroPadding2D(sides)(x)) / shares


def _rounded(x: Tensor, step: float) -> Tensor:
    """Multiples of `step`; gradients pass through."""
    return x + ops.stop_gradient(ops.round(x / step) * step - x)  # pyright: ignore[reportOptionalOperand]


def _coupling(b: _Builder, x: Tensor, f: Tensor) -> Tensor:
    assert isinstance(b.op, Coupling)
    return x + (_rounded(f, b.op.step) if b.op.step else f)


def _space_to_depth(b: _Builder, x: Tensor) -> Tensor:
    height, width, channels = b.node.shape
    assert isinstance(b.op, SpaceToDepth)
    size = b.op.size
    squares = ops.reshape(x, (-1, height, size, width, size, channels // size**2))
    return ops.reshape(ops.transpose(squares, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


def _slice(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, Slice)
    for axis, r in enumerate(b.op.ranges(tuple(x.shape[1:])), start=1):
        if r.size != x.shape[axis] or r.stride != 1:
            x = ops.take(x, r.begin + r.stride * np.arange(r.size), axis)
    return x


def _pad(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, Pad)
    if b.op.mode == "edge":
        for axis, sides in enumerate(b.op.padding, start=1):
            x = ops.take(x, np.pad(np.arange(x.shape[axis]), sides, "edge"), axis) if any(sides) else x
        return x
    more = {"constant_values": b.op.value} if b.op.mode == "constant" else {}
    return ops.pad(x, ((0, 0), *b.op.padding), b.op.mode, **more)


def _reduction(function: Callable[..., Tensor]) -> Callable[[_Builder, Tensor], Tensor]:
    def build(b: _Builder, x: Tensor) -> Tensor:
        assert isinstance(b.op, Reduction)
        axes = tuple(axis + 1 for axis in b.op.reduced(tuple(x.shape[1:])))
        return function(x, axes, keepdims=b.op.keepdims)

    return build


def _transpose(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, Transpose)
    return layers.Permute(tuple(axis + 1 for axis in positions(b.op.axes, tuple(x.shape[1:]))))(x)


def _pad_channels(b: _Builder, x: Tensor) -> Tensor:
    assert isinstance(b.op, PadChannels)
    return ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(b.op.before, b.op.after)])


class WeightLayer(layers.Layer):
    """An op with a weight that is broadcast to its input.

    Arguments:
    - `op`: the op.
    - `function`: what it computes, of the input and the weight.
    - `name`: of the layer.
    """

    def __init__(self, op: WithWeight | Constant, function: Callable[..., Tensor], name: str) -> None:
        super().__init__(name=name)
        self.op, self.function = op, function

    def build(self, input_shape: tuple) -> None:
        self.weight = self.add_weight(name=self.op.role, shape=self.op.weight_shape(tuple(input_shape[1:])))

    def call(self, inputs: Tensor) -> Tensor:
        return self.function(ops, self.op, inputs, self.weight)


def _constant(m: Any, op: Constant, x: Tensor, weight: Tensor) -> Tensor:
    """The weight, for as many examples as there are."""
    flat: Tensor = m.reshape(x, (-1, int(np.prod(x.shape[1:]))))
    return m.reshape(m.zeros_like(flat[:, :1]), (-1, *(1,) * len(op.shape))) + weight


def _take(b: _Builder, x: Tensor, numbers: Tensor) -> Tensor:
    """Products with rows of one 1."""
    size = x.shape[1]
    rows = ops.one_hot(ops.mod(ops.cast(ops.round(numbers), "int32"), size), size, dtype=x.dtype)
    return ops.reshape(ops.matmul(rows, ops.reshape(x, (-1, size, int(np.prod(x.shape[2:]))))), (-1, *b.node.shape))


def _activation(function: Callable[..., Tensor], b: _Builder, x: Tensor) -> Tensor:
    return function(ops, b.op, x)


def _arithmetic(function: Callable[..., Tensor], b: _Builder, *x: Tensor) -> Tensor:
    if isinstance(b.op, WithWeight):
        return WeightLayer(b.op, function, b.node.name)(x[0])
    rank = len(b.node.shape)
    return function(ops, b.op, *(ops.reshape(a, (-1, *(1,) * (rank + 1 - len(a.shape)), *a.shape[1:])) for a in x))


HANDLERS: dict[type[Op], Callable[..., Tensor]] = {
    **{op: partial(_activation, function) for op, function in ACTIVATIONS.items()},
    **{op: partial(_arithmetic, function) for op, function in ARITHMETIC.items()},
    AdaptiveAveragePooling2D: _linear_map,
    Add: lambda b, *x: layers.Add()(list(x)),
    AveragePooling2D: _average_pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda b, *x: layers.Concatenate()(list(x)),
    Constant: lambda b, x: WeightLayer(b.op, _constant, b.node.name)(x),
    Conv2D: _convolution,
    Conv2DTranspose: _transposed_convolution,
    Coupling: _coupling,
    Dense: lambda b, x: layers.Dense(b.op.units, use_bias=b.op.use_bias, name=b.node.name)(x),
    DepthwiseConv2D: _convolution,
    Embedding: lambda b, x: layers.Embedding(b.op.input_dim, b.op.output_dim, name=b.node.name)(x),
    Dropout: lambda b, x: layers.Dropout(b.op.rate)(x),
    Flatten: lambda b, x: layers.Flatten()(x),
    GlobalAveragePooling2D: lambda b, x: layers.GlobalAveragePooling2D()(x),
    GroupNormalization: _example_normalization,
    LayerNormalization: _example_normalization,
    LocalResponseNormalization: _local_response,
    GlobalMaxPooling2D: _reduction(ops.max),
    MatMul: lambda b, x, y: ops.matmul(x, y),
    Max: _reduction(ops.max),
    MaxPooling2D: _max_pooling,
    Mean: _reduction(ops.mean),
    Pad: _pad,
    PadChannels: _pad_channels,
    ReLU: lambda b, x: layers.ReLU(b.op.max_value)(x),
    Reshape: lambda b, x: layers.Reshape(b.node.shape)(x),
    Resize: _resize,
    Slice: _slice,
    SliceChannels: lambda b, x: x[..., b.op.start : b.op.start + b.op.size],
    LogSoftmax: lambda b, x: ops.log_softmax(x),
    Softmax: lambda b, x: layers.Softmax()(x),
    SpaceToDepth: _space_to_depth,
    SpatialDropout2D: lambda b, x: layers.SpatialDropout2D(b.op.rate)(x),
    Stream: lambda b, x: _rounded(x, b.op.step),
    SubSpectralNormalization: _sub_spectral,
    Sum: _reduction(ops.sum),
    Take: _take,
    Transpose: _transpose,
    UpSampling2D: _up_sampling,
    ZeroPadding2D: lambda b, x: layers.ZeroPadding2D(b.op.sides)(x),
}


WEIGHTS_SUFFIX = ".weights.h5"  # end of the name of a file of weights alone
METADATA = "edgelearn.json"  # an entry of the archive; Keras ignores it


def write_keras(path: str | Path, file: ModelFile) -> None:
    """Write the model; class names and preprocessing are the archive's entry "edgelearn.json".

    Raises FormatError for an op without a counterpart, RunError if the file can't be written.
    """
    model = to_keras(file.network, file.weights, "batch")
    if Path(path).name.endswith(WEIGHTS_SUFFIX):
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / f"model{WEIGHTS_SUFFIX}"
            model.save_weights(own)
            atomic.write_bytes(path, own.read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "model.keras"
        model.save(own)
        content = io.BytesIO(own.read_bytes())
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(METADATA, atomic.to_json({name: json.loads(text) for name, text in file.texts().items()}))
    atomic.write_bytes(path, content.getvalue())
