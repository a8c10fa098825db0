"""Heads: a Softmax or Sigmoid at an output that the loss computes itself, more exactly, from the layer before."""

from __future__ import annotations

from edgelearn.errors import PlanError
from edgelearn.graph.fuse import Stage
from edgelearn.graph.network import Network
from edgelearn.ops import Flatten, Loss, Reshape

HEADS = ("Softmax", "Sigmoid")  # names of ops


def logits_of(network: Network, output: str, loss: Loss | None) -> str:
    """The layer whose values the loss of an output takes: the one below the head, or the output itself. Without a loss,
    the same layer for any head: its values stay float32 in every precision.

    Raises PlanError if a head is hidden behind a reshape, where it would be taken for logits.
    """
    node = network.nodes[output]
    kind = type(node.op).__name__
    if kind in HEADS if loss is None else kind == loss.head:
        return node.inputs[0]
    while isinstance(node.op, Flatten | Reshape) and node.inputs[0] in network.nodes:
        node = network.nodes[node.inputs[0]]
    if loss is not None and type(node.op).__name__ == loss.head:
        raise PlanError(
            f"{type(loss).__name__} takes logits, but '{output}' reshapes probabilities of '{node.name}': "
            f"put the {loss.head} at the end, which the loss then takes as its own, or leave it out."
        )
    return output


def without_heads(stages: list[Stage], heads: set[str]) -> list[Stage]:
    """The stages without the layers in `heads`, which end theirs."""
    parts = [tuple(node for node in stage.nodes if node.name not in heads) for stage in stages]
    return [Stage(nodes) for nodes in parts if nodes]
