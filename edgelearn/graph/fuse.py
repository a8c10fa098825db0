"""Layers that run as one kernel: a convolution or dense layer, the BatchNorm behind it, the activation behind that."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.ops import BatchNormalization, LinearOp, ReLU

from .network import Network, Node


@dataclass(frozen=True)
class Stage:
    """Up to three layers in a row. `op` is the first one unless that is a BatchNorm by itself: behind no convolution,
    or of sub-bands, which have more scales and shifts than a convolution has channels."""

    op: Node | None
    norm: Node | None = None
    activation: Node | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in (self.op, self.norm, self.activation) if n is not None)

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
        return self.op is not None and isinstance(self.op.op, LinearOp)

    @property
    def activation_code(self) -> int:
        return self.activation.op.code if self.activation else 0


def fuse(network: Network) -> list[Stage]:
    """The network as stages, in order. A layer joins the one before it only where nobody else reads that."""
    stages: list[Stage] = []
    taken: set[str] = set()

    def follower(node: Node, kind: type) -> Node | None:
        readers = network.consumers(node.name)
        return readers[0] if len(readers) == 1 and isinstance(readers[0].op, kind) else None

    def foldable(node: Node) -> Node | None:
        norm = follower(node, BatchNormalization)
        return norm if norm and norm.op.per_channel else None

    for node in network.nodes.values():
        if node.name in taken:
            continue
        if isinstance(node.op, LinearOp):
            norm = foldable(node)
            stage = Stage(node, norm, follower(norm or node, ReLU))
        elif isinstance(node.op, BatchNormalization):
            stage = Stage(None, node, follower(node, ReLU))
        else:
            stage = Stage(node)
        taken |= {n.name for n in stage.nodes}
        stages.append(stage)
    return stages


def trained_stages(network: Network, stages: list[Stage]) -> set[str]:
    """Names of the stages through which a gradient must pass: those with trained parameters, and all above them."""
    layers = {network.parameters[name].layer for name in network.trainable}
    found: set[str] = set()
    alive: set[str] = set()  # names of nodes whose gradient is needed
    for stage in stages:
        if any(node.name in layers for node in stage.nodes) or any(i in alive for i in stage.inputs):
            found.add(stage.name)
            alive |= {node.name for node in stage.nodes}
    return found
