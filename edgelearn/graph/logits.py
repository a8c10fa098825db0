"""The part of a network that is timed: without its final softmax, and without dropout."""

from __future__ import annotations

from edgelearn.ops import Dropout, LogSoftmax, Softmax, SpatialDropout2D

from .network import Network


def without_softmax_and_dropout(network: Network) -> Network:
    """Copy `network` without a Softmax or LogSoftmax at an output that no other layer reads, and without dropout."""
    result, instead = Network(network.name, network.inputs), {}
    for node in network.nodes.values():
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        ends = node.name in network.outputs and not network.consumers(node.name)
        if isinstance(node.op, Dropout | SpatialDropout2D) or (ends and isinstance(node.op, LogSoftmax | Softmax)):
            instead[node.name] = inputs[0]
        else:
            result.add(node.name, node.op, *inputs)
    result.trainable = network.trainable & set(result.parameters)
    result.take_outputs(network, instead)
    return result
