"""What moving a layer's tensors costs in low precision, by the formula of Fournarakis and Nagel 2021, "In-hindsight
quantization range estimation for quantized training" (arXiv 2105.04246): a forward pass of one example reads weights
and input and writes the output, each once, at their bit-widths. A range that depends on the output itself (dynamic)
costs a detour: the accumulators go to memory and come back before they can be quantized. What the formula leaves out:
caches that are too small; biases, ranges and other vectors; layers that are no convolution.

>>> layer_cost(resnet18(), "conv2_block1_1_conv").saving  # 428.0 KiB instead of 1,996.0 KiB
0.785...
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from edgelearn.errors import PlanError
from edgelearn.ops import Conv2D, DepthwiseConv2D, LinearOp

from .network import Network


@dataclass(frozen=True)
class Cost:
    """Bits of the three tensors, and of the output as accumulators."""

    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    accumulators: int = 0

    @property
    def static_bytes(self) -> float:
        """Bytes moved where the output's range is known beforehand."""
        return (self.weights + self.inputs + self.outputs) / 8

    @property
    def dynamic_bytes(self) -> float:
        """Bytes moved where the output's range depends on the output."""
        return self.static_bytes + 2 * self.accumulators / 8

    @property
    def saving(self) -> float:
        """The share of the dynamic range's bytes that a static one saves."""
        return 1 - self.static_bytes / self.dynamic_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.weights + other.weights,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.accumulators + other.accumulators,
        )


def layer_cost(
    network: Network, layer: str, weights: int = 8, activations: int = 8, accumulators: int = 32, outputs: int = 0
) -> Cost:
    """Of one convolution or dense layer, with bits a value; `outputs` is `activations` unless given. Raises PlanError
    for a layer that has no kernel."""
    node = network.nodes.get(layer)
    if node is None or not isinstance(node.op, LinearOp):
        linear = ", ".join(n.name for n in network.nodes.values() if isinstance(n.op, LinearOp))
        raise PlanError(f"'{layer}' is no convolution or dense layer of '{network.name}', which has: {linear}.")
    size = prod(node.shape)
    return Cost(
        weights * network.count([f"{layer}/kernel"]),
        activations * prod(network.shape_of(node.inputs[0])),
        (outputs or activations) * size,
        accumulators * size,
    )


def convolutions(network: Network) -> list[str]:
    """Names of the convolutions, depthwise ones and projections of shortcuts among them."""
    return [node.name for node in network.nodes.values() if isinstance(node.op, Conv2D | DepthwiseConv2D)]


def network_cost(network: Network, weights: int = 8, activations: int = 8, accumulators: int = 32) -> Cost:
    """The sum over the network's convolutions."""
    costs = (layer_cost(network, name, weights, activations, accumulators) for name in convolutions(network))
    return sum(costs, Cost())
