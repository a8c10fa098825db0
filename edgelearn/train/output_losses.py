"""The losses that a model is compiled with, by output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses, SoftmaxCrossEntropy

from .sources import check_whole


def output_losses(loss: Any, loss_weights: Any, network: Network) -> Loss | Losses:
    """Return the losses of the outputs.

    Arguments:
    - `loss`: one for every output, a dictionary by output, or a list in their order; None in these for an output that
      isn't trained. None alone is softmax cross-entropy.
    - `loss_weights`: factors in the sum, as a dictionary or a list (default: 1 each).

    Raises PlanError for unknown outputs, or for something else than losses.
    """
    if loss is None:
        loss = SoftmaxCrossEntropy()
    if isinstance(loss, Losses) or (loss_weights is None and not isinstance(loss, Mapping | list | tuple)):
        return loss
    outputs = network.outputs
    losses = _by_output(loss, outputs, "loss") if isinstance(loss, Mapping | Sequence) else dict.fromkeys(outputs, loss)
    weights = {} if loss_weights is None else _by_output(loss_weights, outputs, "loss_weights")
    if not (found := {name: one for name, one in losses.items() if one is not None}):
        raise PlanError("Training minimizes a loss: give at least one output one.")
    return Losses(found, weights)


def _by_output(given: Any, outputs: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        if odd := [name for name in given if name not in outputs]:
            raise PlanError(f"{what} names '{odd[0]}', but outputs of the network are {', '.join(outputs)}.")
        return dict(given)
    if not isinstance(given, list | tuple) or len(given) != len(outputs):
        raise PlanError(f"{what} has an entry for each of the outputs {', '.join(outputs)}, got {given!r:.60}.")
    return dict(zip(outputs, given, strict=True))


def check_examples(loss: Loss | Losses, network: Network, examples: int, micro_batch: int) -> None:
    """Raises PlanError if a loss doesn't fit its output, or `examples` in micro-batches of this size."""
    losses = loss if isinstance(loss, Losses) else Losses(dict.fromkeys(network.outputs, loss))
    losses.check({name: node.shape for name, node in network.nodes.items()}, micro_batch)
    check_whole(loss, examples, micro_batch)
