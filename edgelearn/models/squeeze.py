"""Squeeze-and-excitation (Hu et al. 2018, arXiv 1709.01507), a part of networks."""

from __future__ import annotations

from collections.abc import Sequence

from edgelearn.graph import Network
from edgelearn.ops import Conv2D, GlobalAveragePooling2D, Multiply, Op, Reshape


def add_squeeze_excite(network: Network, names: Sequence[str], filters: int, activation: Op, gate: Op) -> str:
    """Multiply each channel of the network's output by a gate that all channels' means decide. Returns the product's
    name.

    Arguments:
    - `names`: of the two convolutions.
    - `filters`: channels between them.
    - `activation`: behind the first one.
    - `gate`: behind the second one.
    """
    x, (first, second) = network.output, names
    add_pixel(network, f"{first}_pool")
    network.add(first, Conv2D(filters, 1, kernel_initializer="he_normal"))
    network.add(f"{first}_activation", activation)
    network.add(second, Conv2D(x.shape[-1], 1, kernel_initializer="he_normal"))
    network.add(f"{second}_gate", gate)
    return network.add(f"{second}_multiply", Multiply(), x.name, f"{second}_gate")


def add_pixel(network: Network, name: str) -> str:
    """Add the mean over all pixels, as an image of one."""
    channels = network.output.shape[-1]
    network.add(name, GlobalAveragePooling2D())
    return network.add(f"{name}_pixel", Reshape((1, 1, channels)))
