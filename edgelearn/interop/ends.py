"""The outputs of networks in other libraries."""

from __future__ import annotations

from typing import Any

from edgelearn.graph import Network, Node
from edgelearn.ops import LogSoftmax, Softmax


def without_softmax(network: Network) -> tuple[list[Node], tuple[str, ...]]:
    """The layers without a Softmax or LogSoftmax at an output that no other layer reads; the layers that give the
    outputs then."""
    ends = {
        name: network.nodes[name].inputs[0]
        for name in network.outputs
        if isinstance(network.nodes[name].op, LogSoftmax | Softmax) and not network.consumers(name)
    }
    nodes = [node for node in network.nodes.values() if node.name not in ends]
    return nodes, tuple(ends.get(name, name) for name in network.outputs)


def only_or_all(outputs: dict[str, Any]) -> Any:
    """The only output, or all by name."""
    return outputs if len(outputs) > 1 else next(iter(outputs.values()))
