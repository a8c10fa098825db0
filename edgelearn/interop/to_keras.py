"""Keras's version of a network, a functional model with the same weights whose layers have the same names, and its
files.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.ops import (
    GRU,
    LSTM,
    SELU,
    AdaptiveAveragePooling2D,
    Add,
    Attention,
    AveragePooling1D,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Constant,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Coupling,
    Dense,
    DepthwiseConv1D,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePooling2D,
    GroupNormalization,
    LayerNormalization,
    LeakyReLU,
    LocalResponseNormalization,
    LogSoftmax,
    MatMul,
    MaxPooling1D,
    MaxPooling2D,
    Op,
    PadChannels,
    PReLU,
    ReLU,
    Resize,
    ReverseEmbedding,
    RMSNormalization,
    RotaryEmbedding,
    SliceChannels,
    Softmax,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Take,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.arithmetic import WithWeight
from edgelearn.ops.elementwise import Activation
from edgelearn.ops.sequences import OVER_STEPS
from edgelearn.ops.shapes import positions
from edgelearn.ops.window import Window, pair

from .exporting import MOVING, ExportedLayer
from .keras_h5 import snake_case
from .read_keras import HANDLERS as READERS
from .safetensors import ModelFile
from .weights import formula_of, in_keras_order, only_or_all, without_softmax

Tensor = Any
OTHER_NAMES = {"gamma": "scale"}  # of weights of Keras's RMSNormalization
# Functions of keras.ops by the op that is read from them. SELU's constants are no settings in Keras, and TensorFlow
# rounds LeakyReLU's slope to float32.
FUNCTIONS = {
    form.meaning: form for kind, form in READERS.items()
    if kind.startswith("ops.") and isinstance(form.meaning, type) and form.meaning not in (SELU, LeakyReLU)
}  # fmt: skip


class MovingBatchNormalization(layers.BatchNormalization):
    """BatchNormalization that normalises with its stored statistics in training, too."""

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        return super().call(inputs, training=False, mask=mask)


def to_keras(
    network: Network,
    weights: Mapping[str, np.ndarray] | None = None,
    batchnorm: Literal["moving", "batch"] = "moving",
    logits: bool = False,
    portable: bool = False,
) -> keras.Model:
    """The network as a Keras model for inputs (n, *input_shape); several inputs and outputs are dictionaries by name.

    Arguments:
    - `network`: its `trainable` parameters are the model's trainable variables.
    - `weights`: arrays by name (default: `initialize(0)`).
    - `batchnorm`: `"moving"` normalises with the stored statistics in training, too; `"batch"` is Keras's way.
    - `logits`: leave a Softmax or LogSoftmax at an output out.
    - `portable`: use layers of Keras alone, so that `keras.models.load_model` reads what the model's `save` writes
      without custom objects, given `batchnorm="batch"`. Weights that are added or multiplied, which no layer of Keras
      has alone, are then rows of an Embedding (default False).

    Raises FormatError for an op that has no counterpart here.
    """
    nodes, ends = without_softmax(network) if logits else (list(network.nodes.values()), network.outputs)
    lacking = [n for n in nodes if type(n.op) not in HANDLERS and formula_of(n.op) is None]
    if lacking:
        names = ", ".join(f"'{node.name}' ({type(node.op).__name__})" for node in lacking)
        raise FormatError(f"Keras's version of a network has no layer for: {names}.")
    several = len(network.inputs) > 1
    inputs = {name: keras.Input(shape, name=name if several else None) for name, shape in network.inputs.items()}
    values: dict[str, Any] = dict(inputs)
    made: dict[str, Any] = {}  # Keras's layers, by name
    tables: dict[str, Any] = {}
    reverse = frozenset(node.owner for node in nodes if isinstance(node.op, ReverseEmbedding))
    norm = MovingBatchNormalization if batchnorm == "moving" else layers.BatchNormalization
    for node in nodes:
        builder = _Builder(ExportedLayer.of(network, node), norm, portable, reverse, tables)
        y = HANDLERS.get(type(node.op), _formula)(builder, *(values[name] for name in node.inputs))
        made[node.name] = y._keras_history.operation
        values[node.name] = made[node.owner](*_inputs_of(y)) if node.shares and node.owner not in tables else y
    outputs = {name: values[end] for name, end in zip(network.outputs, ends, strict=True)}
    model = keras.Model(inputs if several else values[next(iter(inputs))], only_or_all(outputs))
    weights = network.initialize(0) if weights is None else weights
    for name, variable in keras_variables(model, network).items():
        variable.assign(np.reshape(in_keras_order(network, name, weights[name]), variable.shape))
        if network.parameters[name].weight.trainable:
            variable.trainable = name in network.trainable
    _freeze(model, network)
    return model


def _freeze(model: keras.Model, network: Network) -> None:
    """Have files say which layers aren't trained. BatchNormalization is left as it is: where it isn't trained, Keras
    normalises with its stored statistics."""
    trained, layers_of = {name.partition("/")[0] for name in network.trainable}, {x.name: x for x in model.layers}
    for name in dict.fromkeys(parameter.layer for parameter in network.parameters.values()):
        layer = layers_of.get(name)
        if layer is not None and name not in trained and not isinstance(layer, layers.BatchNormalization):
            layer.trainable = False


def _inputs_of(y: Any) -> list[Any]:
    """The tensors that the layer which made `y` reads."""
    read = y._keras_history.operation.input
    return read if isinstance(read, list) else [read]


def keras_variables(model: keras.Model, network: Network) -> dict[str, keras.Variable]:
    """Variables of the model by the names of the network's parameters. Shapes are the network's, but for
    SubSpectralNormalization, where they are flat, for kernels of Conv2DTranspose, whose last two axes are swapped
    (`edgelearn.interop.weights.in_keras_order`), and for the rows of an Embedding in a portable model."""
    found, made = {}, {layer.name for layer in model.layers}  # layers that no output depends on are left out
    for name, parameter in network.parameters.items():
        if parameter.layer not in made:
            continue
        layer = model.get_layer(parameter.layer)
        if isinstance(layer, layers.Embedding):
            found[name] = layer.embeddings
            continue
        roles = (parameter.role, f"depthwise_{parameter.role}", OTHER_NAMES.get(parameter.role))
        found[name] = next(v for v in layer.weights if v.name in roles)
    return found


@dataclass(frozen=True)
class _Builder:
    """A layer under construction.

    Arguments:
    - `layer`: what is written.
    - `norm`: the class of its BatchNormalization.
    - `portable`: as of `to_keras`.
    - `reversed`: owners of weights that a ReverseEmbedding uses.
    - `tables`: Keras's layers by owner of their weights, of ops that may share weights with an op of another kind, or
      of which a layer is only a part.
    """

    layer: ExportedLayer
    norm: type[layers.BatchNormalization]
    portable: bool = False
    reversed: frozenset[str] = frozenset()
    tables: dict[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> Any:
        return self.layer.op

    @property
    def window(self) -> Window:
        return self.layer.window

    def padding(self) -> tuple[str, tuple]:
        """Keras's name for the padding, and zeros to add before where it has none."""
        window = self.window
        same = Window.of((window.height, window.width, 1), window.kernel, window.strides, "same", window.dilation)
        if window.padding == ((0, 0), (0, 0)):
            return "valid", ()
        return ("same", ()) if same.padding == window.padding else ("valid", window.padding)


class _Moves:
    """The methods of an InferenceGraph that its handlers of ops that move or reduce values call."""

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return layers.Reshape(tuple(shape))(x)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return layers.Permute(tuple(order[1:]))(x)

    def slice(self, x: Tensor, *ranges: Sequence[int]) -> Tensor:
        for axis, (start, size, step) in enumerate(zip(*ranges, strict=True), start=1):
            if size != x.shape[axis] or step != 1:
                x = ops.take(x, start + step * np.arange(size), axis)
        return x

    def pad(self, x: Tensor, sides: Sequence[tuple[int, int]], value: float, mode: str) -> Tensor:
        if mode != "edge":
            return ops.pad(x, tuple(sides), mode, **({"constant_values": value} if mode == "constant" else {}))
        for axis, both in enumerate(sides):
            x = ops.take(x, np.pad(np.arange(x.shape[axis]), both, "edge"), axis) if any(both) else x
        return x

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
        return getattr(ops, kind)(x, tuple(axes), keepdims=keep)


def _convolution(b: _Builder, x: Tensor) -> Tensor:
    op, window, (padding, zeros) = b.op, b.window, b.padding()
    skips = isinstance(op, DepthwiseConv2D) and window.strides[0] != window.strides[1]  # TensorFlow has no such kernel
    if skips:
        padding, zeros = "valid", window.padding
    x = layers.ZeroPadding2D(zeros)(x) if zeros else x
    strides = (1, 1) if skips else window.strides
    options = {"strides": strides, "padding": padding, "dilation_rate": window.dilation, "name": b.layer.name}
    if isinstance(op, DepthwiseConv2D):
        y = layers.DepthwiseConv2D(
            window.kernel, depth_multiplier=op.depth_multiplier, use_bias=op.use_bias, **options
        )(x)
        return y[:, :: window.strides[0], :: window.strides[1]] if skips else y
    return layers.Conv2D(op.filters, window.kernel, groups=op.groups, use_bias=op.use_bias, **options)(x)


def _over_steps(b: _Builder, x: Tensor) -> Tensor:
    """Keras's layer of the same name; (before, after) is padded by a layer of its own."""
    op, settings = b.op, {each.name: getattr(b.op, each.name) for each in fields(b.op)}
    settings.pop("kernel_initializer", None)
    if isinstance(op, Conv1DTranspose):
        if settings.pop("groups") > 1:
            raise FormatError(f"Keras has no transposed convolution in groups, which '{b.layer.name}' is.")
        if not isinstance(op.padding, str):
            settings |= {"padding": "valid", "output_padding": op.output_padding or 0}
    elif "padding" in settings and (isinstance(op, DepthwiseConv1D) or op.padding not in ("same", "valid", "causal")):
        _, sides = op.plane.window((1, *b.layer.shapes[0])).padding
        if op.padding not in ("same", "valid") and any(sides):
            is_max = isinstance(op, MaxPooling1D)
            x = ops.pad(x, ((0, 0), sides, (0, 0)), constant_values=float("-inf") if is_max else 0.0)
            if isinstance(op, AveragePooling1D):
                raise FormatError(f"Keras has no mean without padding on one side, as '{b.layer.name}' is.")
            settings["padding"] = "valid"
    y = getattr(layers, type(op).__name__)(**settings, name=b.layer.name)(x)
    if isinstance(op, Conv1DTranspose) and not isinstance(op.padding, str):
        return y[:, op.padding[0] : op.padding[0] + b.layer.shape[0]]
    return y


def _recurrent(b: _Builder, x: Tensor, *others: Tensor) -> Tensor:
    op, options = b.op, {}
    for other in others:
        if len(other.shape) == 2:
            options["mask"] = ops.cast(other, "bool")
        else:
            options["initial_state"] = [other[:, row] for row in range(op.sets)]
    settings = {name: getattr(op, name) for name in ("return_sequences", "return_state", "go_backwards", "use_bias")}
    y = getattr(layers, type(op).__name__)(op.units, **settings, name=b.layer.name)(x, **options)
    if not op.return_state:
        return ops.multiply(y, 1.0) if "mask" in options else y  # layers hand their masks on, operations don't
    rows: Any = ops.stack(y[1:], 1)
    return ops.concatenate([y[0], rows], 1) if op.return_sequences else rows


def _transposed_convolution(b: _Builder, x: Tensor) -> Tensor:
    """Pixels that padding in numbers cuts off are cut off afterwards."""
    op, window = b.op, b.window
    if op.groups > 1:
        raise FormatError(f"Keras has no transposed convolution in groups, which '{b.layer.name}' is.")
    named = isinstance(op.padding, str)
    padding = op.padding if isinstance(op.padding, str) else "valid"
    more = op.output_padding if named else op.output_padding or 0
    y = layers.Conv2DTranspose(
        op.filters, window.kernel, window.strides, padding, more, dilation_rate=window.dilation, use_bias=op.use_bias,
        name=b.layer.name,
    )(x)  # fmt: skip
    (top, _), (left, _) = window.padding
    return y if named else y[:, top : top + window.height, left : left + window.width]


def _resize(b: _Builder, x: Tensor) -> Tensor:
    """Keras's own layer where it has the same convention and precision, else products with matrices."""
    op = b.op
    usual = (op.coordinates, op.scale) == ("half_pixel", None) and (
        op.rounding == "round_prefer_ceil" or not op.selects
    )
    exact = op.selects or x.dtype == "float32"  # TensorFlow's is always in float32
    return layers.Resizing(*pair(op.size), interpolation=op.interpolation)(x) if usual and exact else _linear_map(b, x)


def _up_sampling(b: _Builder, x: Tensor) -> Tensor:
    exact = b.op.selects or x.dtype == "float32"
    return layers.UpSampling2D(b.op.size, interpolation=b.op.interpolation)(x) if exact else _linear_map(b, x)


def _linear_map(b: _Builder, x: Tensor) -> Tensor:
    rows, columns = (matrix.astype(x.dtype) for matrix in b.op.matrices(tuple(x.shape[1:])))
    return ops.einsum("yh,nhwc,xw->nyxc", rows, x, columns)


def _batchnorm(b: _Builder, x: Tensor) -> Tensor:
    return b.norm(momentum=b.op.momentum, epsilon=b.op.epsilon, name=b.layer.name)(x)


def _example_normalization(b: _Builder, x: Tensor) -> Tensor:
    op = b.op
    options = {"epsilon": op.epsilon, "center": op.center, "scale": op.scale, "name": b.layer.name}
    if isinstance(op, GroupNormalization):
        return layers.GroupNormalization(op.groups, **options)(x)
    axes: Any = [axis + 1 for axis in positions(op.axis, b.layer.shape)]
    if isinstance(op, RMSNormalization):
        if axes != [len(b.layer.shape)] or op.center or not op.scale:
            raise FormatError(
                f"Keras's RMSNormalization of '{b.layer.name}' is over one axis with a scale and no shift."
            )
        return layers.RMSNormalization(-1, op.epsilon, name=b.layer.name)(x)
    return layers.LayerNormalization(axes, **options)(x)


def _local_response(b: _Builder, x: Tensor) -> Tensor:
    windows = b.op.windows(b.layer.shape[-1]).T.astype(x.dtype)
    return x * (b.op.bias + b.op.factor * ops.matmul(ops.square(x), windows)) ** -b.op.beta  # type: ignore[operator]


def _sub_spectral(b: _Builder, x: Tensor) -> Tensor:
    """A sub-band of a channel is a channel of its own."""
    height, width, channels = b.layer.shape
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
    if not step:
        return x
    return x + ops.stop_gradient(ops.round(x / step) * step - x)  # pyright: ignore[reportOptionalOperand]


def _pad_channels(b: _Builder, x: Tensor) -> Tensor:
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


def _row_numbers(x: Tensor, rows: int) -> Tensor:
    """0 to rows - 1 for each example, computed from `x`, so that it is a part of the model."""
    flat: Tensor = ops.reshape(x, (-1, prod(x.shape[1:])))
    return ops.add(ops.zeros_like(flat[:, :1], "int32"), np.arange(rows, dtype=np.int32)[None])


def _rows_of_a_table(b: _Builder, x: Tensor) -> Tensor:
    """A weight by itself, with as many axes as `x`, or as it has: rows of an Embedding, all of them in order."""
    op, rank = b.op, len(b.layer.shape)
    *shape, channels = op.weight_shape(b.layer.shapes[0])
    if b.layer.owner not in b.tables:
        b.tables[b.layer.owner] = layers.Embedding(prod(shape), channels, name=b.layer.name)
    rows = b.tables[b.layer.owner](_row_numbers(x, prod(shape)))
    return layers.Reshape((*(1,) * (rank - 1 - len(shape)), *shape, channels))(rows)


def _constant(m: Any, op: Constant, x: Tensor, weight: Tensor) -> Tensor:
    """The weight, for as many examples as there are."""
    flat: Tensor = m.reshape(x, (-1, int(np.prod(x.shape[1:]))))
    return m.reshape(m.zeros_like(flat[:, :1]), (-1, *(1,) * len(op.shape))) + weight


def _take(b: _Builder, x: Tensor, numbers: Tensor) -> Tensor:
    """Products with rows of one 1."""
    size = x.shape[1]
    rows = ops.one_hot(ops.mod(ops.cast(ops.round(numbers), "int32"), size), size, dtype=x.dtype)
    return ops.reshape(ops.matmul(rows, ops.reshape(x, (-1, size, int(np.prod(x.shape[2:]))))), (-1, *b.layer.shape))


def _formula(b: _Builder, *x: Tensor) -> Tensor:
    op: Any = b.op
    if isinstance(op, WithWeight):
        if b.portable:
            return op.formula(ops, x[0], _rows_of_a_table(b, x[0]))
        return WeightLayer(op, lambda m, op, x, weight: op.formula(m, x, weight), b.layer.name)(x[0])
    if (form := FUNCTIONS.get(type(op))) is not None:
        settings = form.attributes(**{each.name: getattr(op, each.name) for each in fields(op)})
        return getattr(ops, snake_case(form.kind))(x[0], **settings)
    if isinstance(op, Activation):
        return op.formula(ops, *x)
    rank = len(b.layer.shape)
    return op.formula(ops, *(ops.reshape(a, (-1, *(1,) * (rank + 1 - len(a.shape)), *a.shape[1:])) for a in x))


def _attention(b: _Builder, *inputs: Tensor) -> Tensor:
    """Heads as an axis of their own. Those of keys are repeated, since TensorFlow's version takes no single head of
    keys for several of queries."""
    op, (queries, channels) = b.op, b.layer.shape
    size, keys = channels // op.heads, inputs[1].shape[1]
    q, k, v = (layers.Reshape((x.shape[1], x.shape[2] // size, size))(x) for x in inputs[:3])
    if op.shared > 1:
        k, v = (ops.repeat(x, op.shared, axis=2) for x in (k, v))
    mask = ops.reshape(ops.cast(inputs[3], "bool"), (-1, 1, 1, keys)) if len(inputs) > 3 else None
    y = ops.dot_product_attention(q, k, v, mask=mask, scale=op.factor(channels), is_causal=op.causal)
    return layers.Reshape((queries, channels))(y)


def _rotary(b: _Builder, x: Tensor, *positions: Tensor) -> Tensor:
    """Each value times a cosine, plus its partner times a sine."""
    if positions:
        raise FormatError(
            f"'{b.layer.name}' turns by positions that it reads, which Keras's version of a network doesn't: leave "
            f"them out for steps from 0 on, or set RotaryEmbedding(begin=…)."
        )
    cosine, sine, partner = b.op.tables(*b.layer.shape)
    return x * cosine.astype(x.dtype) + ops.take(x, partner, axis=2) * sine.astype(x.dtype)  # type: ignore[operator]


def _embedding(b: _Builder, x: Tensor) -> Tensor:
    """Rows by numbers, or products with all rows: where there are both, of one layer."""
    op, owner, is_reverse = b.op, b.layer.owner, isinstance(b.op, ReverseEmbedding)
    if owner not in b.tables:
        kind: Any = getattr(layers, "ReversibleEmbedding", None) if owner in b.reversed else layers.Embedding
        if kind is None:
            raise FormatError(
                f"Keras {keras.__version__} has no ReversibleEmbedding, which '{b.layer.name}' needs: install a newer "
                f"one (3.15 has it), or end the network in a Dense of its own weights."
            )
        channels = b.layer.shapes[0][-1] if is_reverse else op.output_dim
        b.tables[owner] = kind(op.input_dim, channels, name=b.layer.name)
    return b.tables[owner](x, reverse=True) if is_reverse else b.tables[owner](x)


def _moved(handle: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda b, x: handle(_Moves(), b.layer, x)


# Keras layers by op; those that have a formula need no entry.
HANDLERS: dict[type[Op], Callable[..., Tensor]] = {
    **{op: _moved(handle) for op, handle in MOVING.items()},
    **dict.fromkeys(OVER_STEPS, _over_steps),
    GRU: _recurrent,
    LSTM: _recurrent,
    AdaptiveAveragePooling2D: _linear_map,
    Add: lambda b, *x: layers.Add()(list(x)),
    Attention: _attention,
    AveragePooling2D: _average_pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda b, *x: layers.Concatenate()(list(x)),
    Constant: lambda b, x: _rows_of_a_table(b, x) if b.portable else WeightLayer(b.op, _constant, b.layer.name)(x),
    Conv2D: _convolution,
    Conv2DTranspose: _transposed_convolution,
    Coupling: lambda b, x, f: x + _rounded(f, b.op.step),
    Dense: lambda b, x: layers.Dense(b.op.units, use_bias=b.op.use_bias, name=b.layer.name)(x),
    DepthwiseConv2D: _convolution,
    Embedding: _embedding,
    Dropout: lambda b, x: layers.Dropout(b.op.rate)(x),
    Flatten: lambda b, x: layers.Flatten()(x),
    GlobalAveragePooling2D: lambda b, x: layers.GlobalAveragePooling2D()(x),
    GroupNormalization: _example_normalization,
    LayerNormalization: _example_normalization,
    LocalResponseNormalization: _local_response,
    MatMul: lambda b, x, y: ops.matmul(x, y),
    MaxPooling2D: _max_pooling,
    PadChannels: _pad_channels,
    PReLU: lambda b, x: layers.PReLU(shared_axes=b.op.shared_axes or None, name=b.layer.name)(x),
    ReverseEmbedding: _embedding,
    RMSNormalization: _example_normalization,
    RotaryEmbedding: _rotary,
    ReLU: lambda b, x: layers.ReLU(b.op.max_value)(x),
    Resize: _resize,
    SliceChannels: lambda b, x: x[..., b.op.start : b.op.start + b.op.size],
    LogSoftmax: lambda b, x: ops.log_softmax(x),
    Softmax: lambda b, x: layers.Softmax()(x),
    SpatialDropout2D: lambda b, x: layers.SpatialDropout2D(b.op.rate)(x),
    Stream: lambda b, x: _rounded(x, b.op.step),
    SubSpectralNormalization: _sub_spectral,
    Take: _take,
    UpSampling2D: _up_sampling,
    ZeroPadding2D: lambda b, x: layers.ZeroPadding2D(b.op.sides)(x),
}


WEIGHTS_SUFFIX = ".weights.h5"  # end of the name of a file of weights alone
METADATA = "edgelearn.json"  # an entry of the archive; Keras ignores it


def write_keras(path: str | Path, file: ModelFile) -> None:
    """Write the model; class names and preprocessing are the archive's entry "edgelearn.json".

    Raises FormatError for an op without a counterpart, RunError if the file can't be written.
    """
    is_whole = not Path(path).name.endswith(WEIGHTS_SUFFIX)
    try:
        model = to_keras(file.network, file.weights, "batch", portable=is_whole)
    except FormatError as error:
        raise FormatError(f"{path}: {error} Save it with Model.save, or export another format.") from None
    if not is_whole:
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
