"""Stages: a linear op and the BatchNorm and activation after it run as one kernel, and so do a sum and an activation;
and the split of a network after its frozen stages, so that these run only once per example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgelearn.ops import Add, BatchNormalization, LinearOp
from edgelearn.ops.tensor import LINEAR, Function, Shape

from .network import INPUT, Network, Node


@dataclass(frozen=True)
class Stage:
    """Consecutive layers that are computed together, each reading the one before.

    Arguments:
    - `nodes`: a linear op, a BatchNorm and an activation, each of them optional; a sum and an activation; or any other
      op alone.
    """

    nodes: tuple[Node, ...]

    @property
    def op(self) -> Node | None:
        """The first layer, or None if the stage begins with a BatchNorm."""
        return None if isinstance(self.nodes[0].op, BatchNormalization) else self.nodes[0]

    @property
    def norm(self) -> Node | None:
        return next((node for node in self.nodes if isinstance(node.op, BatchNormalization)), None)

    @property
    def name(self) -> str:
        return self.nodes[0].name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.nodes[0].inputs

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def is_linear(self) -> bool:
        return isinstance(self.nodes[0].op, LinearOp)

    @property
    def activation(self) -> Function:
        """The fused activation, or LINEAR."""
        return self.output.op.epilogue if len(self.nodes) > 1 else LINEAR


def fuse(network: Network, sums: bool = False) -> list[Stage]:
    """Divide the network into stages, in order. A layer joins the one before it if its op `fuses_after` that one, which
    has no other reader and is no output.

    Arguments:
    - `sums`: an activation joins a sum of two tensors, too (default False).
    """
    stages: list[Stage] = []
    fused: set[str] = set()
    outputs = network.outputs if network.nodes else ()
    for node in network.nodes.values():
        if node.name in fused:
            continue
        nodes = [node]
        while len(readers := network.consumers(nodes[-1].name)) == 1 and nodes[-1].name not in outputs:
            op = readers[0].op
            after_sum = sums and op.epilogue != LINEAR and _adds_two(network, nodes[-1])
            if not after_sum and not op.fuses_after(nodes[-1].op):
                break
            nodes += readers
        fused |= {node.name for node in nodes}
        stages.append(Stage(tuple(nodes)))
    return stages


def _adds_two(network: Network, node: Node) -> bool:
    shapes = network.input_shapes(node.inputs)
    return type(node.op) is Add and len(shapes) == 2 and shapes[0] == shapes[1]


def trained_stages(network: Network, stages: list[Stage], inputs: bool = False) -> set[str]:
    """Names of the stages that a gradient must reach: those with trained parameters, or with `inputs` those that read
    the network's inputs, and all that depend on them."""
    layers = {network.parameters[name].layer for name in network.trainable}
    trained: set[str] = set()
    alive = set(network.inputs) if inputs else set[str]()  # names of what has a gradient
    for stage in stages:
        if any(node.owner in layers for node in stage.nodes) or any(i in alive for i in stage.inputs):
            trained.add(stage.name)
            alive |= {node.name for node in stage.nodes}
    return trained


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
    shared = not below.isdisjoint(node.shares for node in outside)
    reads_others = not others.isdisjoint(i for node in outside for i in node.inputs)
    return not (shared or reads_others) and below.isdisjoint(network.outputs)


def _part(
    network: Network, suffix: str, inputs: Mapping[str, Shape], nodes: list[Node], renamed: dict[str, str]
) -> Network:
    part = Network(f"{network.name} {suffix}", inputs)
    for node in nodes:
        part.add_like(node, *(renamed.get(i, i) for i in node.inputs))
    part.trainable = network.trainable & set(part.parameters)
    return part
