"""Networks as inference graphs: BatchNormalization folded, dropout left out, tensors quantized as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.graph.fuse import Stage, fuse
from edgelearn.interop.weights import Weights
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    HardSigmoid,
    Op,
    ReLU,
    Sigmoid,
    SiLU,
    SpatialDropout2D,
    SubSpectralNormalization,
)
from edgelearn.ops.window import Window

from .graph import InferenceGraph, Value
from .handlers import AFFINE, HANDLERS, Layer, scale_and_shift
from .ranges import FIXED, SIX, Ranges

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
