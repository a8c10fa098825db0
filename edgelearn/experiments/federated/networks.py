"""Networks that clients with few examples train."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GroupNormalization,
    MaxPooling2D,
    ReLU,
)


def with_group_normalization(network: Network, groups: int = 8) -> Network:
    """A copy of a network with GroupNormalization in place of BatchNormalization: the statistics of a few examples of
    one client tell nothing of the others'. `groups`: of channels."""
    copy = Network(f"{network.name}_gn", network.inputs)
    for node in network.nodes.values():
        op = GroupNormalization(groups=groups) if isinstance(node.op, BatchNormalization) else node.op
        copy.add(node.name, op, *node.inputs)
    copy.take_outputs(network)
    return copy


def lenet(input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Network:
    """LeNet of 6 and 16 channels, 120 and 84 units: the network of Flower's `niid_bench` on CIFAR-10, 62,006
    parameters."""
    network = Network("lenet", input_shape)
    for number, filters in enumerate((6, 16), 1):
        network.add(f"conv{number}", Conv2D(filters, 5))
        network.add(f"relu{number}", ReLU())
        network.add(f"pool{number}", MaxPooling2D(2))
    network.add("flatten", Flatten())
    for number, units in enumerate((120, 84), 3):
        network.add(f"dense{number}", Dense(units))
        network.add(f"relu{number}", ReLU())
    network.add("dense5", Dense(classes))
    return network
