"""Memory traffic of a layer in low precision, by the formula of Fournarakis and Nagel 2021, "In-hindsight quantization
range estimation for quantized training" (arXiv 2105.04246).

A forward pass of one example reads weights and input and writes the output, each once, at their bit-widths. If the
range depends on the output (dynamic), the accumulators are also written and read before they are quantized. The formula
ignores cache misses, biases, ranges and other vectors, and layers that aren't convolutions.

>>> layer_traffic(resnet18(), "conv2_block1_1_conv").saved_share  # 428.0 KiB instead of 1,996.0 KiB
0.785...
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from edgelearn.errors import PlanError
from edgelearn.graph.network import Network
from edgelearn.ops import Conv2D, DepthwiseConv2D, LinearOp


@dataclass(frozen=True)
class LayerTraffic:
    """Bits of the three tensors of a layer, and of the output as accumulators."""

    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    accumulators: int = 0

    @property
    def static_bytes(self) -> float:
        """Bytes moved if the output's range is static."""
        return (self.weights + self.inputs + self.outputs) / 8

    @property
    def dynamic_bytes(self) -> float:
        """Bytes moved if the output's range is dynamic."""
        return self.static_bytes + 2 * self.accumulators / 8

    @property
    def saved_share(self) -> float:
        """The share of the dynamic range's bytes that a static one saves."""
        return 1 - self.static_bytes / self.dynamic_bytes

    def __add__(self, other: LayerTraffic) -> LayerTraffic:
        return LayerTraffic(
            self.weights + other.weights,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.accumulators + other.accumulators,
        )


def layer_traffic(
    network: Network, layer: str, weights: int = 8, activations: int = 8, accumulators: int = 32, outputs: int = 0
) -> LayerTraffic:
    """Traffic of one convolution or dense layer.

    Arguments:
    - `weights`, `activations`, `accumulators`, `outputs`: bits a value; `outputs` is `activations` by default.

    Raises PlanError for a layer without a kernel.
    """
    node = network.nodes.get(layer)
    if node is None or not isinstance(node.op, LinearOp):
        linear = ", ".join(n.name for n in network.nodes.values() if isinstance(n.op, LinearOp))
        raise PlanError(f"'{layer}' is no convolution or dense layer of '{network.name}', which has: {linear}.")
    size = prod(node.shape)
    return LayerTraffic(
        weights * network.count([f"{layer}/kernel"]),
        activations * prod(network.shape_of(node.inputs[0])),
        (outputs or activations) * size,
        accumulators * size,
    )


def convolutions(network: Network) -> list[str]:
    """Names of the convolutions, depthwise ones and projections of shortcuts among them."""
    return [node.name for node in network.nodes.values() if isinstance(node.op, Conv2D | DepthwiseConv2D)]


def network_traffic(network: Network, weights: int = 8, activations: int = 8, accumulators: int = 32) -> LayerTraffic:
    """The sum over the network's convolutions."""
    costs = (layer_traffic(network, name, weights, activations, accumulators) for name in convolutions(network))
    return sum(costs, LayerTraffic())
