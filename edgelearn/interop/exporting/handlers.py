"""Translate ops to an inference graph: `HANDLERS` has one function an op.

It gets the graph, the layer and its inputs, and returns the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgelearn.graph import Node
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Bias,
    Concatenate,
    Constant,
    Conv2DTranspose,
    Coupling,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    GroupNormalization,
    HardSigmoid,
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
    Rescaling,
    Reshape,
    Resize,
    Scale,
    Slice,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Sum,
    Transpose,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.resize import ROUNDINGS

from .functions import POINTWISE
from .graph import InferenceGraph, Value


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
