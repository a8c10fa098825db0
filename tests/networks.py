"""Networks of tests as tables of layers."""

from __future__ import annotations

from typing import Any

from edgelearn.graph import Network
from edgelearn.ops import Op


def add(network: Network, *layers: tuple[Any, ...]) -> str:
    """Add layers to a network, each a row of its name, its op and, if that isn't the layer before, its inputs.

    Returns the name of the last one.
    """
    return [network.add(*layer) for layer in layers][-1]


def chain(name: str, shape: tuple[int, ...], **layers: Op) -> Network:
    """A network whose layers follow one another: `chain("small", (4,), dense=Dense(3), relu=ReLU())`."""
    network = Network(name, shape)
    add(network, *layers.items())
    return network
