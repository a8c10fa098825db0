"""Fusion: a linear op and the BatchNorm and activation behind it run as one kernel; so do a sum and an activation."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.ops import Add, BatchNormalization, LinearOp
from edgelearn.ops.function import LINEAR, Function

from .network import Network, Node


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


def trained_stages(network: Network, stages: list[Stage]) -> set[str]:
    """Names of the stages that a gradient must reach: those with trained parameters and all that depend on them."""
    layers = {network.parameters[name].layer for name in network.trainable}
    trained: set[str] = set()
    alive: set[str] = set()  # names of nodes whose gradient is needed
    for stage in stages:
        if any(node.name in layers for node in stage.nodes) or any(i in alive for i in stage.inputs):
            trained.add(stage.name)
            alive |= {node.name for node in stage.nodes}
    return trained
