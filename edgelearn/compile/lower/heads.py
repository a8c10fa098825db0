"""Heads: a Softmax, LogSoftmax or Sigmoid at an output that the loss computes itself, more exactly, from the layer
before."""

from __future__ import annotations

from edgelearn.errors import PlanError
from edgelearn.graph.fuse import Stage
from edgelearn.graph.network import Network, Node
from edgelearn.ops import Flatten, Loss, Losses, Reshape

LIKE = {"Softmax": ("Softmax", "LogSoftmax")}  # heads that a loss which names the first computes: names of ops
HEADS = ("Softmax", "LogSoftmax", "Sigmoid")


def head_of(network: Network, output: str, loss: Loss | None) -> list[Node]:
    """The layers at an output that its loss leaves out: a head, and what reshapes it without changing its rows. Empty
    if there is no head. Without a loss, a head of any kind at the very end: the layer below stays float32 in every
    precision."""
    nodes = _head(network, output, loss)
    return nodes if nodes and nodes[0].shape[-1] == nodes[-1].shape[-1] else []


def check_heads(network: Network, losses: Losses) -> None:
    """Raises PlanError if a head is reshaped to other rows: a loss would take probabilities for logits."""
    for output, loss in losses.by_output.items():
        nodes = _head(network, output, loss)
        if nodes and nodes[0].shape[-1] != nodes[-1].shape[-1]:
            raise PlanError(
                f"{type(loss).__name__} takes logits, but '{output}' reshapes probabilities of '{nodes[0].name}', "
                f"{nodes[0].shape} to {nodes[-1].shape}: to train, put the {type(nodes[0].op).__name__} at the end, "
                f"which the loss then takes as its own, or leave it out."
            )


def _head(network: Network, output: str, loss: Loss | None) -> list[Node]:
    """The layers from a head to the output, empty if there is none."""
    kinds = HEADS if loss is None else LIKE.get(loss.head, (loss.head,))
    nodes = [network.nodes[output]]
    while loss and isinstance(nodes[0].op, Flatten | Reshape) and nodes[0].inputs[0] in network.nodes:
        nodes.insert(0, network.nodes[nodes[0].inputs[0]])
    return nodes if type(nodes[0].op).__name__ in kinds else []


def without_heads(stages: list[Stage], heads: set[str]) -> list[Stage]:
    """The stages without the layers in `heads`, which end theirs."""
    parts = [tuple(node for node in stage.nodes if node.name not in heads) for stage in stages]
    return [Stage(nodes) for nodes in parts if nodes]
