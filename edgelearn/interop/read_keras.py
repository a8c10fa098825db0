"""Whole Keras models become trainable networks: .keras archives of Keras 3, and .h5 files of Keras 2 and 3.

A handler of a layer gets what the layer reads, then its arrays. https://keras.io/api/layers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isclose, prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.graph import Network
from edgelearn.ops import (
    Attention,
    Bias,
    Constant,
    LeakyReLU,
    Max,
    Mean,
    Op,
    ReverseEmbedding,
    RMSNormalization,
    Scale,
    Sum,
)
from edgelearn.ops.pooling import Reduction
from edgelearn.ops.window import Pair

from . import keras_h5, operators, recurrent, shapes
from . import keras_structure as configuration
from .builder import Builder, Operand, Value, check_size, in_order
from .canonical import ForeignGraph, Operator, TensorInfo
from .foreign import ArrayFile, open_arrays
from .formats import FileFormat, GraphReader, graph_format, register, weights_of_a_network
from .forms import Form, Only, forms, pair
from .keras_h5 import list_layers, snake_case
from .keras_structure import Call, Structure, filled
from .safetensors import ModelFile

Array = np.ndarray  # a constant
ACTIVATIONS = {
    "elu": "ELU", "exponential": "Exp", "gelu": "GELU", "hard_silu": "HardSwish", "hard_swish": "HardSwish",
    "mish": "Mish", "selu": "SELU", "sigmoid": "Sigmoid", "silu": "SiLU", "softplus": "Softplus",
    "softsign": "Softsign", "swish": "SiLU", "tanh": "Tanh",
}  # fmt: skip
PER_KEY = "A mask of keys alone, (batch, 1, keys), and use_causal_mask."


def _activated(b: Builder, op: Operator, x: Operand) -> Operand:
    """The activation in which a layer ends: a name, or the record of a function or a layer."""
    setting: Any = op.attributes.get("activation")
    config: Any = setting.get("config") if isinstance(setting, dict) else {}
    if isinstance(config, str):
        setting, config = config, {}
    elif isinstance(setting, dict) and isinstance(config, dict):
        setting = str(setting["class_name"])
    if setting in (None, "linear"):
        return x
    if op.kind == "Activation":
        return _activation(b, op, x, setting, config)
    with b.part(str(setting).lower()):
        return _activation(b, op, x, setting, config)


def _activation(b: Builder, op: Operator, x: Operand, name: Any, config: dict[str, Any]) -> Operand:
    if name in ("relu", "ReLU"):
        return operators.clip(b, x, 0, config.get("max_value"))
    if name == "relu6":
        return operators.clip(b, x, 0, 6)
    if name in ("softmax", "log_softmax"):
        return getattr(operators, name)(b, x)
    if name == "leaky_relu":
        return operators.activation(b, x, LeakyReLU(0.2 if op.version >= 3 else 0.3))
    if name == "hard_sigmoid":
        return operators.hard_sigmoid(b, x, slope=1 / 6 if op.version >= 3 else 0.2)
    if isinstance(name, str) and name in ACTIVATIONS:
        return operators.activation(b, x, Op.registry[ACTIVATIONS[name]]())
    raise UnsupportedError(f"Activation {name!r:.100}.", f"One of relu, softmax, {', '.join(ACTIVATIONS)}.")


class _Layer(Form):
    """A layer, whose inputs are what it reads, then its arrays; "gamma?scale" is one that a setting leaves out."""

    def operands(self, b: Builder, inputs: Sequence[Operand | None]) -> dict[str, Any]:
        a, weighted = b.operator.attributes, len(self.inputs) > 1 and self.inputs[1][0] != "*"
        if weighted and not a["arrays"]:
            raise FormatError(
                f"{b.operator.kind} '{b.operator.name}' has no weights in the file. Give a file with all weights."
            )
        flags = [name.partition("?") for name in self.inputs]
        left_out = [name for name, _, flag in flags if flag and not a.get(flag, True)]
        names = tuple(name for name, _, _ in flags if name not in left_out)
        return dict.fromkeys(left_out) | Form(self.kind, self.name, self.meaning, names, self.names).operands(b, inputs)


class _Function(Form):
    """A function between layers: keras.ops of Keras 3 ("ops.Add"), or of TensorFlow in files of Keras 2 ("tf.concat").
    Its inputs are its arguments, by place or by name."""

    def operands(self, b: Builder, inputs: Sequence[Operand | None]) -> dict[str, Any]:
        a, given = b.operator.attributes, dict[str, Any](zip(self.inputs[:1], inputs, strict=False))
        arguments, keywords = a["arguments"], a["keywords"]
        for place, name in enumerate(self.inputs):
            key = str(self.names.get(name, name)).partition("=")[0]
            value = arguments[place] if place < len(arguments) else keywords.get(key, keywords.get(name, a.get(key)))
            value = configuration.filled(value, inputs)
            if self.parameters.get(name) == "Operand" and not isinstance(value, Value | None):
                value = np.asarray(value, np.float64)
            if value is not None:
                given[name] = value
        return given


def _channels(op: Operator, x: Any = None) -> int:
    return 1 if op.attributes.get("data_format") == "channels_first" else -1


def _axis(op: Operator, x: Any) -> int:
    """The only axis of a setting."""
    axes = op.attributes.get("axis", -1)
    axes = axes if isinstance(axes, list) else [axes]
    if len(axes) != 1:
        raise UnsupportedError(f"{op.kind} over the axes {axes!r:.60}.", "One axis.")
    return axes[0]


def separable_conv(
    b: Builder, x: Value, depth: Array, point: Array, bias: Array | None = None, *, strides: Pair = (1, 1),
    padding: Any = "valid", dilation: Pair = (1, 1), channels: int,
) -> Value:  # fmt: skip
    with b.part("depthwise"):
        y = operators.depthwise(b, x, depth, strides=strides, padding=padding, dilation=dilation, channels=channels)
    return operators.conv(b, y, point, bias, channels=channels)


def normalization(
    b: Builder, x: Operand, arrays: Sequence[Operand], *, mean: Any = None, variance: Any = None, axis: Any = -1,
    inverted: bool = False,
) -> Operand:  # fmt: skip
    """(x - mean) / sqrt(variance) with statistics of the training data."""
    if mean is None:
        if len(arrays) < 2:
            raise FormatError(
                f"{b.operator.kind} '{b.operator.name}' has no mean and variance. Adapt the layer, and save it again."
            )
        mean, variance = arrays[:2]
    if axis not in (-1, [-1], None, []) and axis not in (len(x.shape) - 1, [len(x.shape) - 1]):
        raise UnsupportedError(f"Normalization over axis {axis}.", "The last axis.")
    scale = np.maximum(np.sqrt(np.asarray(variance, np.float64)), 1e-7).reshape(-1)
    shift = np.asarray(mean, np.float64).reshape(-1)
    if inverted:
        return operators.add(b, operators.mul(b, x, scale), shift)
    return operators.mul(b, operators.sub(b, x, shift), 1 / scale)


def rescaling(b: Builder, x: Operand, *, scale: Any = 1.0, offset: Any = 0.0) -> Operand:
    factor, shift = np.asarray(scale, np.float64), np.asarray(offset, np.float64)
    if factor.size == shift.size == 1:
        return operators.scale(b, x, float(factor.reshape(())), float(shift.reshape(())))
    return operators.add(b, operators.mul(b, x, factor), shift)


def relu(
    b: Builder, x: Operand, *, highest: float | None = None, slope: float = 0.0, threshold: float = 0.0
) -> Operand:
    if threshold or (slope and highest is not None):
        raise UnsupportedError(f"ReLU with threshold={threshold}, negative_slope={slope}.", "ReLU(max_value).")
    return operators.activation(b, x, LeakyReLU(slope)) if slope else operators.clip(b, x, 0, highest)


def flatten(b: Builder, x: Operand, *, channels: int) -> Operand:
    if channels == 1 and len(x.shape) == 4:
        x = shapes.transpose(b, x, (0, 2, 3, 1))
    return shapes.reshape(b, x, (x.shape[0], -1))


def embedding(b: Builder, x: Operand, table: Array) -> Operand:
    """Rows by computed numbers; all rows in order, by constant ones, are a weight by itself."""
    if isinstance(x, Value):
        return shapes.gather(b, table, x)
    if not np.array_equal(x.ravel(), np.arange(len(table))):
        raise UnsupportedError("Rows of a table by constant numbers.", "All rows in order, or computed numbers.")
    layer = b.add(Constant(table.shape), next(iter(b.inputs)), weights={"value": table})
    rows = Value.of(layer, table.shape, (0, 1))
    return rows if x.ndim == 2 else shapes.reshape(b, rows, (*x.shape, table.shape[1]))


def reversible_embedding(b: Builder, x: Operand, table: Array) -> Operand:
    """An Embedding, or, in reverse, the products with all of its rows."""
    a: Any = b.operator.attributes
    if not a.get("tie_weights", True) or a.get("logit_soft_cap"):
        raise UnsupportedError("ReversibleEmbedding with weights for each way, or a cap.", "tie_weights=True.")
    if not (a["keywords"].get("reverse") or a["arguments"][1:2] == (True,)):
        return embedding(b, x, table)
    if not isinstance(x, Value):
        raise UnsupportedError("Its input is a constant.", "An input that depends on the network's.")
    return b.apply(ReverseEmbedding(len(table)), x, shapes.with_last(b, x, -1), weights={"embeddings": table})


def rms_normalization(b: Builder, x: Value, gamma: Array, *, axis: Any = -1, epsilon: float = 1e-6) -> Value:
    order = shapes.with_last(b, x, -1)
    if axis not in (-1, [-1], x.rank - 1, [x.rank - 1]):
        raise UnsupportedError(f"RMSNormalization over axis {axis}.", "The last axis.")
    return b.apply(RMSNormalization(epsilon), x, order, weights={"gamma": gamma})


def _sides(name: str, sign: int) -> Callable[[Operator, Any], list[tuple[int, int]]]:
    """(before, after) for each axis, of a setting for height and width."""

    def read(op: Operator, x: Any) -> list[tuple[int, int]]:
        rank, value = len(x.shape), op.attributes[name]
        value = [value] * (rank - 2) if isinstance(value, int) else value
        value = [value] if rank == 3 and len(value) == 2 and isinstance(value[0], int) else value
        pairs = [(sign * n, sign * n) if isinstance(n, int) else (sign * int(n[0]), sign * int(n[1])) for n in value]
        whole = (0, 0)
        return [whole, whole, *pairs] if _channels(op) == 1 else [whole, *pairs, whole]

    return read


def _upsampled(op: Operator, x: Any) -> list[int]:
    factors, first = pair(op.attributes.get("size") or 2, "size", op, x), 2 if _channels(op) == 1 else 1
    return [n * factor for n, factor in zip(x.shape[first : first + 2], factors, strict=True)]


_WHOLE = "Resizing to a height and a width."
_POOLS = {
    "AveragePooling": "average_pool",
    "GlobalAveragePooling": "global_average_pool",
    "GlobalMaxPooling": "global_max_pool",
    "MaxPooling": "max_pool",
    "Conv": ("conv x kernel:HWIO bias", {"groups": "groups=1"}),
    "DepthwiseConv": "depthwise x kernel:HWIO bias",
    "SeparableConv": (separable_conv, "x depth:HWIO point:HWIO bias"),
    "SpatialDropout": "dropout",
    "Cropping": ("pad x", {"sides": _sides("cropping", -1)}),
    "ZeroPadding": ("pad x", {"sides": _sides("padding", 1)}),
}
_UNMASKED = Only(False, "mask_zero=False.")
_NORM = "x gamma?scale beta?center"
_BATCHNORM = (f"batchnorm {_NORM} mean variance", {"channels": _axis})
_LAYERS = forms(
    {
        **{f"{kind}{axes}D": entry for kind, entry in _POOLS.items() for axes in (1, 2)},
        "Activation": "identity",
        "Add": "add *",
        "BatchNormalization": _BATCHNORM,
        "BatchNormalizationV1": _BATCHNORM,
        "Conv2DTranspose": "transposed_conv x kernel:HWOI bias",
        "Dense": "dense x kernel:IO bias",
        "Dropout": ("dropout", {"channels": None}),
        "ELU": ("ELU", {"alpha": "alpha=1.0"}),
        "Embedding": (embedding, "x table", {"mask_zero": _UNMASKED}),
        "Flatten": flatten,
        "GroupNormalization": (
            f"group_normalization {_NORM}", {"groups": "groups=32", "channels": "axis"}
        ),
        "LayerNormalization": (f"layer_normalization {_NORM}", {"axes": "axis=-1"}),
        "LayerScale": "mul",
        "LeakyReLU": (
            "LeakyReLU",
            {"negative_slope": lambda op, x: op.attributes.get("negative_slope", op.attributes.get("alpha", 0.3))},
        ),
        "Maximum": "maximum *",
        "Minimum": "minimum *",
        "Multiply": "mul *",
        "Normalization": (normalization, "x *arrays"),
        "Permute": ("transpose x", {"order": lambda op, x: (0, *op.attributes["dims"])}),
        "ReversibleEmbedding": (reversible_embedding, "x table", {"mask_zero": _UNMASKED}),
        "ReLU": (relu, {"highest": "max_value", "slope": "negative_slope"}),
        "Rescaling": rescaling,
        "Reshape": ("reshape x", {"shape": lambda op, x: (x.shape[0], *op.attributes["target_shape"])}),
        "RMSNormalization": (rms_normalization, "x gamma", {"epsilon": "epsilon=1e-6"}),
        "Resizing": (
            "resize x",
            {"size": "height width", "mode": "interpolation='bilinear'",
             "crop_to_aspect_ratio": Only(False, _WHOLE), "pad_to_aspect_ratio": Only(False, _WHOLE)},
        ),
        "Softmax": ("softmax", {"axis": _axis}),
        "Subtract": "sub *",
        "UnitNormalization": ("unit_length", {"axis": _axis}),
        "UpSampling2D": ("resize x", {"size": _upsampled, "mode": "interpolation='nearest'"}),
        "training only": "identity",
    },
    same="Average Concatenate Identity PReLU",
    form=_Layer, after=_activated, channels=_channels, dilation="dilation_rate", size="pool_size=2",
    epsilon="epsilon=1e-3", momentum="momentum=0.99", inverted="invert",
)  # fmt: skip


def reduction(
    b: Builder, x: Operand, axes: Sequence[int] | None = None, keepdims: bool = False, *, kind: type[Reduction]
) -> Operand:
    if axes is None:
        raise UnsupportedError("It reduces the batch.", "Axes of an example.")
    return operators.reduced(b, x, axes, kind=kind, keepdims=keepdims)


def reshape(b: Builder, x: Operand, shape: Any) -> Operand:
    return shapes.reshape(b, x, [x.shape[0] if n is None else n for n in shape])


def broadcast_to(b: Builder, x: Operand, shape: Any) -> Operand:
    return shapes.expand(b, x, [1 if n is None else n for n in shape])


def plus(b: Builder, x: Operand, y: Operand) -> Operand:
    """x + y, of which one may be a weight by itself"""
    found = _with_weight(b, x, y, Bias)
    return operators.add(b, x, y) if found is None else found


def times(b: Builder, x: Operand, y: Operand) -> Operand:
    """x * y, of which one may be a weight by itself"""
    found = _with_weight(b, x, y, Scale)
    return operators.mul(b, x, y) if found is None else found


def _with_weight(b: Builder, x: Operand, y: Operand, op: type[Bias | Scale]) -> Value | None:
    """The layer that adds or multiplies a weight by itself, under the weight's name; None if neither is one."""
    for value, other in ((x, y), (y, x)):
        if not isinstance(value, Value) or not isinstance(other, Value) or value.layer == other.layer:
            continue
        weight, alone = b.maker(value), value.sole and value.batch_axis == 0 == other.batch_axis
        if weight is None or not isinstance(weight.op, Constant) or not alone:
            continue
        if np.broadcast_shapes(value.shape, other.shape) != other.shape or value.sizes != tuple(
            value.sizes[factor] for axis in value.axes[1:] for factor in axis
        ):
            continue
        order = b.natural_order(other)
        array = in_order(weight.weights["value"].reshape((1,) * (other.rank - value.rank + 1) + value.shape[1:]), order)
        while array.ndim > 1 and len(array) == 1:
            array = array[0]
        is_plain = array.shape == (other.shape[order[-1]],)
        del b.layers[value.layer]  # whose name the new one takes
        function, b.operator = b.operator, replace(b.operator, name=weight.operator)  # which the weight is from
        frozen = (op.role,) if weight.frozen else ()
        settings: Any = {"name": value.layer, "weights": {op.role: array}, "frozen": frozen}
        y = b.apply(op(None if is_plain else array.shape), other, order, **settings)
        b.operator = function
        return y
    return None


def get_item(b: Builder, x: Operand, key: Any) -> Operand:
    """x[key], of numbers, slices, ... and None."""
    keys = key if isinstance(key, list) else [key]
    places = [place for place, part in enumerate(keys) if part is Ellipsis]
    if places:
        missing = len(x.shape) - sum(part is not None and part is not Ellipsis for part in keys)
        keys = [*keys[: places[0]], *[slice(None)] * missing, *keys[places[0] + 1 :]]
    axis = 0
    for part in keys:
        if part is None:
            x = shapes.unsqueeze(b, x, [axis])
        elif part == slice(None):
            pass
        elif not isinstance(part, int | slice) or (isinstance(x, Value) and axis == x.batch_axis):
            raise UnsupportedError("Elements by computed numbers, or of the batch.", "Numbers and slices.")
        elif isinstance(part, int):
            n = x.shape[axis]
            if not -n <= part < n:
                raise FormatError(f"{b.operator.kind} '{b.operator.name}': element {part} of an axis of {n}.")
            x = shapes.squeeze(b, shapes.slice_axis(b, x, axis, part % n, part % n + 1), [axis])
            continue
        else:
            x = shapes.slice_axis(b, x, axis, part.start, part.stop, part.step or 1)
        axis += 1
    return x


def filled_like(b: Builder, x: Operand, *, value: float) -> Operand:
    """A constant of the shape of x."""
    return np.full(check_size(x.shape), value, np.float32)


def cast(b: Builder, x: Operand, *, dtype: str) -> Operand:
    y = operators.as_type(b, x, dtype=dtype)
    if isinstance(x, Value) and isinstance(y, Value) and y.layer != x.layer:
        b.nonzero[y.layer] = x
    return y


def repeat(b: Builder, x: Operand, repeats: Any, axis: int | None = None) -> Operand:
    """Each element of an axis so many times."""
    if not isinstance(repeats, int) or repeats < 1 or axis is None:
        raise UnsupportedError("Elements that are repeated by numbers of their own.", "One number, and an axis.")
    axis %= len(x.shape)
    if isinstance(x, np.ndarray):
        check_size((*x.shape, repeats), x)
    wide = shapes.unsqueeze(b, x, [axis + 1])
    wide = shapes.expand(b, wide, (*wide.shape[: axis + 1], repeats, *wide.shape[axis + 2 :]))
    return shapes.reshape(b, wide, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


def take(b: Builder, x: Operand, indices: Operand, axis: int | None = None) -> Operand:
    if axis is None:
        raise UnsupportedError("Elements of all axes as one.", "An axis.")
    indices = np.rint(indices).astype(np.int64) if isinstance(indices, np.ndarray) else indices
    return shapes.gather(b, x, indices, axis=axis)


def concatenate(b: Builder, values: Any, axis: int = 0) -> Operand:
    return shapes.concatenate(b, values, axis=axis)


def split(b: Builder, x: Operand, parts: Any, axis: int = 0) -> tuple[Operand, ...]:
    axis %= len(x.shape)
    if isinstance(parts, int):
        if parts < 1 or x.shape[axis] % parts:
            raise UnsupportedError(f"{parts} parts of an axis of {x.shape[axis]}.", "Equal parts.")
        return shapes.halves(b, x, count=parts, axis=axis)
    ends = [*parts, x.shape[axis]]
    sizes = [end - begin for begin, end in zip([0, *parts], ends, strict=True)]
    return shapes.split(b, x, sizes, axis=axis)


# -- attention ---------------------------------------------------------------------------------------------------------


def attend(b: Builder, read: Sequence[Value], op: Attention, mask: Operand | None = None) -> Value:
    """The result (batch, queries, channels) of a layer.

    Arguments:
    - `read`: query, key and value (batch, steps, channels), heads side by side in the channels.
    - `op`: the layer.
    - `mask`: of keys, (batch, keys) with axes of 1 anywhere; True, or another number than 0, for those that are seen
      (default None: all).

    Raises UnsupportedError for another mask.
    """
    masks = [] if mask is None else _mask(b, mask, read[1].shape[1])
    layer = b.add(op, *(b.laid_out(x, (1, 2)) for x in read), *masks)
    return recurrent.result(b, read[0], layer)


def _mask(b: Builder, mask: Operand, keys: int) -> list[str]:
    """The layer of a mask; none for a constant that leaves nothing out."""
    if isinstance(mask, np.ndarray):
        if mask.all():
            return []
        raise UnsupportedError("Attention with a constant mask.", PER_KEY)
    if mask.batch_axis != 0 or mask.shape[-1] != keys or prod(mask.shape[1:]) != keys:
        raise UnsupportedError(f"Attention with a mask {mask.shape}.", PER_KEY)
    before = b.nonzero.get(mask.layer)
    mask = before if before is not None and before.sizes == mask.sizes else mask
    return [b.arrange(mask, tuple(factor for axis in mask.axes[1:] for factor in axis))]


def _called(b: Builder, values: Sequence[Operand]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of the call; settings of training and what is None or False are left out."""
    a: Any = b.operator.attributes
    keywords = {name: filled(part, values) for name, part in a["keywords"].items() if name != "training"}
    return filled(list(a["arguments"]), values), {n: x for n, x in keywords.items() if x is not None and x is not False}


def _refuse_others(b: Builder, found: Sequence[str], read: Sequence[Any], rank: int, nearest: str) -> None:
    """Raises UnsupportedError for settings that aren't read, and for values of another rank."""
    if found or any(not isinstance(x, Value) or x.rank != rank or x.batch_axis != 0 for x in read):
        raise UnsupportedError(
            f"{b.operator.kind} with {', '.join(found) or 'constants, or inputs of other ranks'}.", nearest
        )


def dot_product_attention(
    b: Builder, query: Any, key: Any, value: Any, bias: Any = None, mask: Operand | None = None,
    scale: float | None = None, *, causal: bool = False,
) -> Operand:  # fmt: skip
    """The function, of (batch, steps, heads, size)."""
    nearest = "Query, key and value (batch, steps, heads, size), and a mask of keys alone (batch, 1, 1, keys)."
    _refuse_others(b, ["bias"] if bias is not None else [], (query, key, value), 4, nearest)
    heads, size = query.shape[2:]
    sources = [_before_repeating(b, x) for x in (key, value)]
    key, value = sources if sources[0].shape == sources[1].shape else (key, value)
    usual = scale is None or isclose(scale, size**-0.5, rel_tol=1e-6)
    op = Attention(heads, key.shape[2], causal, None if usual else scale)
    joined: list[Any] = [shapes.reshape(b, x, (*x.shape[:2], -1)) for x in (query, key, value)]
    return shapes.reshape(b, attend(b, joined, op, mask), query.shape)


def _before_repeating(b: Builder, x: Value) -> Value:
    """Heads (batch, steps, heads, size) before each was repeated for neighbours; `x` itself if they weren't."""
    repeated, source = b.repeated.get(x.layer, (None, x))
    if repeated is None or x.sizes != repeated.sizes or source.rank != 5 or source.shape[3] != 1:
        return x
    return source.squeezed((3,))


def attention_layer(b: Builder, x: Operand, rest: Sequence[Any]) -> Operand:
    """keras.layers.Attention of a list of query, value and perhaps key, with a trained scale or 1."""
    a: Any = b.operator.attributes
    count = int(a["arrays"])
    values, arrays = [x, *rest[: len(rest) - count]], rest[len(rest) - count :]
    arguments, given = _called(b, values)
    query, value, *others = arguments[0] if arguments else given.pop("inputs", [None, None])
    key = others[0] if others else value
    causal, masks = bool(given.pop("use_causal_mask", False)), given.pop("mask", None) or [None, None]
    unread = [*given, *(["a mask of queries"] if masks[0] is not None else [])]
    unread += [] if a.get("score_mode", "dot") == "dot" else ["score_mode"]
    nearest = "Query, value and key (batch, steps, channels), score_mode='dot', and masks of keys alone."
    _refuse_others(b, unread, (query, value, key), 3, nearest)
    if bool(a.get("use_scale")) != bool(count):
        raise FormatError(f"Attention '{b.operator.name}' has {count} arrays in the file. It is damaged: restore it.")
    if count:
        with b.part("scale"):
            query = b.apply(Scale((1,)), query, b.natural_order(query), weights={"scale": arrays[0].reshape(1)})
    return attend(b, [query, key, value], Attention(causal=causal, scale=1.0), masks[1])


def projected_attention(b: Builder, x: Operand, rest: Sequence[Any]) -> Operand:
    """MultiHeadAttention and GroupQueryAttention: query, value and key, each after a dense layer, and a dense layer
    over the heads."""
    a: Any = b.operator.attributes
    count = int(a["arrays"])
    values, arrays = [x, *rest[: len(rest) - count]], [np.asarray(array) for array in rest[len(rest) - count :]]
    arguments, given = _called(b, values)
    given = dict(zip(("query", "value", "key"), arguments, strict=False)) | given
    causal, mask = bool(given.pop("use_causal_mask", False)), given.pop("attention_mask", None)
    query, value, key = (given.pop(name, None) for name in ("query", "value", "key"))
    key = value if key is None else key
    grouped = b.operator.kind == "GroupQueryAttention"
    heads, key_heads, size = (
        (int(a[name]) for name in ("num_query_heads", "num_key_value_heads", "head_dim"))
        if grouped
        else (int(a["num_heads"]), int(a["num_heads"]), int(a["key_dim"]))
    )
    settings = {
        "attention_axes": [1], "output_shape": None, "use_gate": False, "value_dim": size, "sliding_window": None,
    }  # fmt: skip
    unread = [*given, *(name for name, usual in settings.items() if a.get(name) not in (None, usual))]
    nearest = "Query, value and key (batch, steps, channels), with a mask of keys, use_causal_mask, or without a mask."
    _refuse_others(b, unread, (query, value, key), 3, nearest)
    biased = bool(a.get("use_bias", True))
    if count != (8 if biased else 4):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}' has {count} arrays in the file, not 8, or 4.")
    pairs = zip(arrays[:: 1 + biased], arrays[1::2] if biased else [None] * 4, strict=True)
    read = []
    for name, each, (kernel, bias) in zip(("query", "key", "value"), (query, key, value), pairs, strict=False):
        with b.part(name):
            read.append(
                operators.dense(b, each, kernel.reshape(len(kernel), -1), None if bias is None else bias.ravel())
            )
    with b.part("attention"):
        mixed = attend(b, read, Attention(heads, key_heads if grouped else None, causal), mask)
    kernel, bias = arrays[3 + 3 * biased], arrays[7] if biased else None
    return operators.dense(b, mixed, kernel.reshape(-1, kernel.shape[-1]), bias)


_FUNCTIONS = forms(
    {
        "Absolute": "Abs", "Add": plus,
        "BroadcastTo": broadcast_to, "Cast": cast, "Concatenate": concatenate, "Divide": "div",
        "DotProductAttention": (
            dot_product_attention, "query key value bias mask scale", {"causal": "is_causal=False"}
        ),
        "ExpandDims": "unsqueeze", "Gelu": ("GELU x approximate", {"approximate": "approximate=True"}),
        "GetItem": get_item, "HardSilu": "HardSwish",
        "LeakyRelu": ("LeakyReLU x negative_slope", {"negative_slope": "negative_slope=0.2"}),
        "LogSoftmax": "log_softmax x axis", "Max": (reduction, {"kind": Max}), "Mean": (reduction, {"kind": Mean}),
        "Multiply": times, "Negative": "neg", "OnesLike": (filled_like, "x", {"value": 1.0}),
        "Pad": "pad x sides mode value", "Repeat": repeat, "Reshape": reshape,
        "Softmax": "softmax x axis", "Split": split, "Subtract": "sub", "Sum": (reduction, {"kind": Sum}),
        "Take": take, "TrueDivide": "div", "ZerosLike": (filled_like, "x", {"value": 0.0}),
    },
    same="Clip Elu Equal Exp Greater GreaterEqual HardSigmoid Less LessEqual Log Matmul Maximum Minimum NotEqual Power "
         "Relu Relu6 Rsqrt Selu Sigmoid Silu Softplus Sqrt Square Squeeze Tanh Transpose Where",
    form=_Function, x="x1", y="x2", exponent="x2", axes="axis", order="axes", shape="newshape", low="x_min",
    high="x_max", parts="indices_or_sections", values="xs", sides="pad_width", value="constant_values",
)  # fmt: skip
_TENSORFLOW = forms(
    {
        "__operators__.add": "add", "concat": concatenate, "math.add": "add", "math.divide": "div",
        "math.multiply": "mul", "math.sigmoid": "Sigmoid", "math.subtract": "sub", "math.tanh": "Tanh",
        "math.truediv": "div", "nn.relu": "ReLU", "nn.relu6": "relu6", "nn.silu": "SiLU",
        "nn.softmax": "softmax x axis",
    },
    form=_Function,
)  # fmt: skip
_SEQUENCES = forms(
    {
        "Attention": (attention_layer, "x *rest"),
        "GroupQueryAttention": (projected_attention, "x *rest"),
        "MultiHeadAttention": (projected_attention, "x *rest"),
        "Bidirectional": (recurrent.keras_bidirectional, "x *arrays"), "GRU": (recurrent.keras_layer, "x *arrays"),
        "LSTM": (recurrent.keras_layer, "x *arrays"),
    },
    form=_Layer,
)  # fmt: skip
HANDLERS = {
    **_LAYERS,
    **_SEQUENCES,
    **{f"ops.{name}": form for name, form in _FUNCTIONS.items()},
    **{f"tf.{name}": form for name, form in _TENSORFLOW.items()},
}

_CODE = "layers of Keras, or an export to TFLite or ONNX: Python code is not in the file, or not run"
NEAREST = {
    "Lambda": _CODE,
    "custom layer": _CODE,
    "Bidirectional": "LSTM or GRU in both directions",
    "SimpleRNN": "LSTM or GRU",
    "TimeDistributed": "the layer itself: Dense reads the last axis",
}


ATTENTION = ("Attention", "GroupQueryAttention", "MultiHeadAttention")
ARCHIVE, FILE = "a .keras archive", "a Keras model in HDF5"
# Layers that act in training alone, and have no counterpart here: they are left out, and the metadata name them.
TRAINING_ONLY = {"ActivityRegularization", "AlphaDropout", "GaussianDropout", "GaussianNoise", "RandomBrightness",
                 "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation",
                 "RandomZoom", "StochasticDepth"}  # fmt: skip


def read_archive(path: Path) -> ForeignGraph:
    """Read a .keras archive. Raises FormatError naming the file."""
    with open_arrays(path, "keras", ARCHIVE) as file:
        structure = configuration.parse(file.texts["config.json"], path)
        version = _version(file.texts.get("metadata.json", "{}"))
        return _graph(file, structure, _in_archive(file, structure), version)


def read_hdf5(path: Path) -> ForeignGraph:
    """Read a whole model in HDF5. Raises FormatError naming the file, and if it holds weights alone."""
    with open_arrays(path, "hdf5", FILE) as file:
        text = "".join(file.texts.get("@model_config", []))
        if not text:
            raise FormatError(f"{path} holds weights without a graph: say of which network, with network=….")
        structure = configuration.parse(text, path)
        version = "".join(file.texts.get("model_weights@keras_version", file.texts.get("@keras_version", ["3"])))
        return _graph(file, structure, _in_hdf5(file, structure), version)


def _graph(
    file: ArrayFile, structure: Structure, weights: dict[tuple[str, ...], dict[str, str]], version: str
) -> ForeignGraph:
    """The graph, and the arrays of its layers. `weights`: the file's names of a layer's arrays, by role."""
    needed = {call.path: weights.get(call.path, {}) for call in structure.calls}
    arrays = file.read([name for names in needed.values() for name in names.values()])
    constants, operators, left_out = {}, [], []
    for call in structure.calls:
        own = {role: f"{'/'.join(call.path)}@{role}" for role in needed[call.path]}
        constants |= {own[role]: _float(arrays[name]) for role, name in needed[call.path].items()}
        if _acts_in_training_alone(call):
            left_out.append(f"{'/'.join(call.path)} ({call.kind})")
        if call.kind in ATTENTION and call.config.get("dropout"):
            left_out.append(f"{'/'.join(call.path)} (its dropout)")
        operators.append(_operator(call, tuple(own.values()), version))
    notes: dict[str, Any] = {"left out, since they act in training alone": left_out} if left_out else {}
    inputs = tuple(
        TensorInfo(name, shape, dtype, "NHWC" if len(shape) == 4 else "") for name, shape, dtype in structure.inputs
    )
    return ForeignGraph("Keras", structure.name, inputs, structure.outputs, tuple(operators), constants, metadata=notes)


def _operator(call: Call, arrays: tuple[str, ...], version: str) -> Operator:
    kind = "custom layer" if call.is_custom else "training only" if _acts_in_training_alone(call) else call.kind
    called = {"class_name": call.kind, "arguments": call.arguments, "keywords": call.keywords, "arrays": len(arrays)}
    number = int(version[0]) if version[:1].isdigit() else 3
    # Functions have no weights: what they add or multiply are constants.
    is_frozen = call.config.get("trainable") is False or call.kind.startswith("ops.")
    settings = {**call.config, **called}
    return Operator(kind, call.path[-1], (*call.inputs, *arrays), call.outputs, settings, number, is_frozen)


def _acts_in_training_alone(call: Call) -> bool:
    shape = call.config.get("noise_shape") if call.kind == "Dropout" else None
    return call.kind in TRAINING_ONLY or bool(shape)


def _float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def _version(metadata: str) -> str:
    try:
        return str(json.loads(metadata)["keras_version"])
    except (KeyError, RecursionError, TypeError, ValueError):
        return "3"


# Folders where layers have arrays: recurrent ones in cells, attention in its dense layers.
CELLS = (
    "", "/cell", "/forward_layer/cell", "/backward_layer/cell", "/query_dense", "/key_dense", "/value_dense",
    "/output_dense", "/_query_dense", "/_key_dense", "/_value_dense", "/_output_dense",
)  # fmt: skip


def _in_archive(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number: "layers/conv2d_1/vars/0". Keras numbers layers of a class; since 3.6 it
    writes the layer's name beside its arrays."""
    named = {group.removesuffix("/vars@name"): texts[0] for group, texts in file.texts.items()
             if group.endswith("/vars@name") and texts}  # fmt: skip
    folders: dict[tuple[str, ...], str] = {}
    for group, name in named.items():
        parts = group.split("/")
        around = [named.get("/".join(parts[: n + 1]), "") for n in range(1, len(parts) - 1, 2)]
        folders[(*around, name)] = group
    if not folders:
        folders = _numbered(structure)
    return {
        path: {
            str(n): name
            for n, name in enumerate(name for part in CELLS for name in _numbered_arrays(file, folder + part))
        }
        for path, folder in folders.items()
    }


def _numbered_arrays(file: ArrayFile, folder: str) -> Iterator[str]:
    number = 0
    while (name := f"{folder}/vars/{number}") in file.arrays:
        yield name
        number += 1


def _numbered(structure: Structure) -> dict[tuple[str, ...], str]:
    """Folders by the classes of layers, as Keras numbers them."""
    folders: dict[tuple[str, ...], str] = {}
    counts: dict[str, int] = {}
    for call in structure.calls:
        if call.path in folders or call.kind.startswith("ops."):
            continue
        if len(call.path) > 1:
            raise FormatError(f"'{'/'.join(call.path)}' is in a nested model of an early Keras 3: save it anew.")
        snake = snake_case(call.kind)
        number = counts.get(snake, 0)
        counts[snake] = number + 1
        folders[call.path] = f"layers/{snake}" + (f"_{number}" if number else "")
    return folders


def _in_hdf5(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number. The arrays of a nested model are all in its group."""
    layers = list_layers(file)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for call in structure.calls:
        names = layers.get(call.path[0], [])
        if len(call.path) > 1:
            names = [name for name in names if name.split("/")[-2:-1] == [call.path[-1]]]
        found[call.path] = {str(n): name for n, name in enumerate(names)}
    return found


_whole = graph_format("Keras HDF5", (), b"", GraphReader(read_hdf5, HANDLERS, NEAREST))


def _read(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    """With a network, its weights by names of layers; without one, the model that the file describes."""
    return _whole.read(path, None, skip) if network is None else _weights(path, network, skip)


_weights = weights_of_a_network(keras_h5.read_weights)
register(graph_format("Keras", (".keras",), b"", GraphReader(read_archive, HANDLERS, NEAREST)))
register(FileFormat("Keras HDF5", (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n", _read, _whole.graph))
