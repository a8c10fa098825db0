"""Networks as inference graphs: BatchNormalization folded, dropout left out, tensors quantized as in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.graph.fuse import Stage, fuse
from edgelearn.interop.weights import Weights
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, ReLU

from .graph import InferenceGraph, Value
from .handlers import HANDLERS, Layer, scale_and_shift
from .ranges import Ranges

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
        y = _Stage(graph, network, weights, stage, found).write(x)
        if found is not None:
            y = found.quantize(graph, stage.output.name, y, x if stage.output.op.selects else ())
        values[stage.output.name] = y
    graph.outputs |= {name: values[name] for name in network.outputs}
    return graph


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
            scale, shift = scale_and_shift(norm)
            bias = shift if bias is None else bias * scale + shift
        activation = None
        if nodes and isinstance(nodes[0].op, ReLU) and nodes[0].op.max_value in (None, 6):
            activation = "relu6" if nodes.pop(0).op.max_value else "relu"  # type: ignore[attr-defined]
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
