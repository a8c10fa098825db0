"""Cut a network so that its frozen part runs only once per example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgelearn.ops.tensor import Shape

from .fuse import fuse, trained_stages
from .network import INPUT, Network, Node


@dataclass(frozen=True)
class Split:
    """`prefix` computes the tensor `cut`, the input of `suffix`. Layers keep their names."""

    prefix: Network
    suffix: Network
    cut: str


def split_frozen(network: Network) -> Split | None:
    """Cut after the last frozen layer whose output is all that the layers above read; None if there is none.

    The prefix is deterministic: all its parameters are frozen, BatchNorm keeps its statistics, and no op is random.
    """
    stages = fuse(network)
    trained = trained_stages(network, stages)
    frozen: set[str] = set()
    cut = None
    for stage in stages:
        if stage.name in trained or any(node.op.random for node in stage.nodes):
            break
        frozen |= {node.name for node in stage.nodes}
        if _is_gate(network, stage.output.name, frozen):
            cut = stage.output.name, frozen.copy()
    if cut is None:
        return None
    name, below = cut
    prefix = _part(network, "prefix", network.inputs, [n for n in network.nodes.values() if n.name in below], {})
    prefix.outputs = name
    above = [n for n in network.nodes.values() if n.name not in below]
    if not above:
        return None
    suffix = _part(network, "suffix", {INPUT: network.shape_of(name)}, above, {name: INPUT})
    suffix.take_outputs(network)
    return Split(prefix, suffix, name)


def _is_gate(network: Network, name: str, below: set[str]) -> bool:
    """True if layers above read only `name` from `below`, and all outputs are above."""
    outside = [node for node in network.nodes.values() if node.name not in below]
    others = {*below, *network.inputs} - {name}
    return others.isdisjoint(i for node in outside for i in node.inputs) and below.isdisjoint(network.outputs)


def _part(
    network: Network, suffix: str, inputs: Mapping[str, Shape], nodes: list[Node], renamed: dict[str, str]
) -> Network:
    part = Network(f"{network.name} {suffix}", inputs)
    for node in nodes:
        part.add(node.name, node.op, *(renamed.get(i, i) for i in node.inputs))
    part.trainable = network.trainable & set(part.parameters)
    return part
