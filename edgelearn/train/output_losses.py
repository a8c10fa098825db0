"""The losses that a model is compiled with, by output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import LOSSES, Loss, Losses, SoftmaxCrossEntropy

from .sources import check_whole


def output_losses(loss: Any, loss_weights: Any, network: Network) -> Loss | Losses:
    """Return the losses of the outputs.

    Arguments:
    - `loss`: a loss, or Keras's name of one, for every output; a dictionary of these by output, or a list in their
      order, with None for an output that isn't trained. None alone is softmax cross-entropy.
    - `loss_weights`: factors in the sum, as a dictionary or a list (default: 1 each).

    Raises PlanError for unknown outputs, or for something else than losses.
    """
    loss = SoftmaxCrossEntropy() if loss is None else _named(loss)
    if isinstance(loss, Losses) or (loss_weights is None and not isinstance(loss, Mapping | list | tuple)):
        return loss
    outputs = network.outputs
    losses = _by_output(loss, outputs, "loss") if isinstance(loss, Mapping | Sequence) else dict.fromkeys(outputs, loss)
    weights = {} if loss_weights is None else _by_output(loss_weights, outputs, "loss_weights")
    if not (found := {name: one for name, one in losses.items() if one is not None}):
        raise PlanError("Training minimizes a loss: give at least one output one.")
    return Losses(found, weights)


def _named(loss: Any) -> Any:
    """Replace Keras's names of losses, such as "mse", by the losses themselves."""
    if isinstance(loss, Mapping):
        return {output: _named(one) for output, one in loss.items()}
    if isinstance(loss, list | tuple):
        return [_named(one) for one in loss]
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise PlanError(f"'{loss}' is no name of a loss: there are {', '.join(LOSSES)}, and the classes of el.losses.")
    return LOSSES[loss]()


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
