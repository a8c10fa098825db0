"""Networks as inference graphs: BatchNormalization folded, dropout left out, tensors quantized as in training.

`HANDLERS` has one function an op: it gets the graph, the layer and its inputs, and returns the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import INPUT, Network, Node
from edgelearn.graph.fuse import Stage, fuse
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Coupling,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    MaxPooling2D,
    Mean,
    Op,
    PadChannels,
    ReLU,
    Reshape,
    SiLU,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    ZeroPadding2D,
)

from .inference_graph import InferenceGraph, Value
from .inference_ranges import Ranges
from .weights import Weights

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
    unknown = {type(n.op).__name__: n.name for n in network.nodes.values() if type(n.op) not in SUPPORTED}
    if unknown:
        ops = ", ".join(f"{op} (layer '{layer}')" for op, layer in unknown.items())
        raise FormatError(f"Inference formats have no counterpart here for: {ops}. Save it with Model.save instead.")
    graph, found = InferenceGraph(network.name), None if ranges is None else Ranges(ranges)
    values = {INPUT: graph.input(INPUT, network.input_shape)}
    if found is not None:
        values[INPUT] = found.quantize(graph, INPUT, values[INPUT])
    for stage in fuse(network):
        graph.layer = stage.output.name
        x = [values[name] for name in stage.inputs]
        y = _Stage(graph, network, weights, stage, found).write(x)
        if found is not None:
            y = found.quantize(graph, stage.output.name, y, x if stage.output.op.selects else ())
        values[stage.output.name] = y
    graph.outputs[network.output.name] = values[network.output.name]
    return graph


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


@dataclass(frozen=True)
class _Stage:
    """A stage of the network on its way into the graph."""

    graph: InferenceGraph
    network: Network
    weights: Mapping[str, np.ndarray]
    stage: Stage
    ranges: Ranges | None

    def write(self, x: list[Value]) -> Value:
        nodes = list(self.stage.nodes)
        if isinstance(nodes[0].op, LINEAR):
            x = [self._linear(nodes, x[0])]
        for node in nodes:
            x = [HANDLERS[type(node.op)](self.graph, self._layer(node), *x)]
        return x[0]

    def _layer(self, node: Node) -> Layer:
        prefix = f"{node.name}/"
        names = [name for name in self.network.parameters if name.startswith(prefix)]
        own = {name.removeprefix(prefix): self.weights[name].astype(np.float64) for name in names}
        return Layer(node, self.network.input_shapes(node.inputs), own)

    def _linear(self, nodes: list[Node], x: Value) -> Value:
        """Write a linear op with the BatchNormalization and the rectifier behind it; removes these from `nodes`."""
        layer = self._layer(nodes.pop(0))
        op, kernel, bias = layer.node.op, layer.weights["kernel"], layer.weights.get("bias")
        scale = None
        if nodes and type(nodes[0].op) is BatchNormalization:
            norm = self._layer(nodes.pop(0))
            scale, shift = _scale_and_shift(norm)
            bias = shift if bias is None else bias * scale + shift
        activation = None
        if nodes and isinstance(nodes[0].op, ReLU) and nodes[0].op.max_value in (None, 6):
            activation = "relu6" if nodes.pop(0).op.max_value else "relu"  # type: ignore[attr-defined]
        axis = 2 if isinstance(op, DepthwiseConv2D) else kernel.ndim - 1
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


def _scale_and_shift(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """What a BatchNormalization multiplies by and adds."""
    w, op = layer.weights, layer.node.op
    assert isinstance(op, BatchNormalization)
    scale = w["gamma"] / np.sqrt(w["moving_variance"] + op.epsilon)
    return scale, w["beta"] - w["moving_mean"] * scale


def _batchnorm(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    scale, shift = _scale_and_shift(layer)
    return graph.scalar("add", graph.scalar("mul", x, scale), shift)


def _sub_spectral(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    """Scales and shifts by rows of the image, each repeated for the rows of its sub-band."""
    scale, shift = (np.repeat(a, layer.node.shape[0] // len(a), 0)[:, None] for a in _scale_and_shift(layer))
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
    return graph.reduce("mean", x, (1, 2), keep=False)


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


def _slice_channels(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    op, shape = layer.node.op, layer.node.shape
    assert isinstance(op, SliceChannels)
    return graph.slice(x, (*(0 for _ in shape[:-1]), op.start), shape)


def _pad_channels(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, PadChannels)
    return graph.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(layer.node.op.before, layer.node.op.after)])


def _relu(graph: InferenceGraph, layer: Layer, x: Value) -> Value:
    assert isinstance(layer.node.op, ReLU)
    return graph.unary("relu6" if layer.node.op.max_value else "relu", x)


HANDLERS: dict[type[Op], Callable[..., Value]] = {
    Add: _sum,
    AveragePooling2D: _pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda graph, layer, *x: graph.concatenate(x),
    Coupling: _coupling,
    Dropout: lambda graph, layer, x: x,
    Flatten: lambda graph, layer, x: graph.reshape(x, layer.node.shape),
    GlobalAveragePooling2D: _global_average,
    MaxPooling2D: _pooling,
    Mean: lambda graph, layer, x: graph.reduce("mean", x, (layer.node.op.axis,)),
    PadChannels: _pad_channels,
    ReLU: _relu,
    Reshape: lambda graph, layer, x: graph.reshape(x, layer.node.shape),
    SiLU: lambda graph, layer, x: graph.binary("mul", x, graph.unary("sigmoid", x)),
    SliceChannels: _slice_channels,
    Softmax: lambda graph, layer, x: graph.unary("softmax", x),
    SpaceToDepth: _space_to_depth,
    SpatialDropout2D: lambda graph, layer, x: x,
    Stream: lambda graph, layer, x: _rounded(graph, x, layer.node.op.step),
    SubSpectralNormalization: _sub_spectral,
    ZeroPadding2D: lambda graph, layer, x: graph.pad(x, ((0, 0), *layer.node.op.sides, (0, 0))),
}  # fmt: skip
SUPPORTED = (*HANDLERS, *LINEAR)
