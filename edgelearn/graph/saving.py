"""How saved activations come back when the backward pass needs them: a choice of the plan for each tensor.

A tensor goes by the name of the layer that gives it; where layers run as one kernel it has all their names. It is kept
unless all of them have a way back; then it lives until the forward pass has read it. graph/policies.py makes such
choices for whole networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgelearn.errors import PlanError

from .network import INPUT, Network
from .precision import Precision


@dataclass(frozen=True)
class Recompute:
    """The launches of the forward pass run again, from the nearest tensors that are there. On the way to a tensor of a
    lower level, those of higher levels come and go; a second level is checkpoints within checkpoints."""

    level: int = 1

    def __str__(self) -> str:
        return "recompute" if self.level == 1 else f"recompute, level {self.level}"


@dataclass(frozen=True)
class Invert:
    """The first input of an invertible layer comes back from the layer's output and other inputs."""

    layer: str
    level: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"invert by {self.layer}"


Way = Recompute | Invert
Saving = Mapping[str, Way]  # by layer


def check(network: Network, saving: Saving, precision: Precision) -> None:
    """Raises PlanError for choices that can't be."""
    _, inverted = invertible_streams(network)
    for name, way in saving.items():
        if name not in network.nodes:
            raise PlanError(f"'{name}' is to come back by {way}, but '{network.name}' has no such layer.")
        if not isinstance(way, Invert):
            continue
        if inverted.get(name) != way.layer:
            raise PlanError(
                f"'{name}' can't be had back from '{way.layer}': only the first input of a Coupling or SpaceToDepth "
                f"can, and only if the other input isn't made of it. Recompute it, or couple the network's residual "
                f"blocks (see graph/reversible.py)."
            )
        if any(precision.format("activations", layer) for layer in (name, way.layer)):
            raise PlanError(
                f"'{name}' can't be had back from '{way.layer}', since its activations are rounded to fewer bits: "
                f"leave streams out of that (Precision's exceptions), or recompute them."
            )


def invertible_streams(network: Network) -> tuple[set[str], dict[str, str]]:
    """All streams, which are the first inputs of invertible layers and what these give; and the layer by which a stream
    can be had back, where the layer's other inputs are made of other streams."""
    layers = [node for node in network.nodes.values() if node.op.invertible]
    streams = {node.inputs[0] for node in layers} | {node.name for node in layers}
    inverted = {
        node.inputs[0]: node.name
        for node in layers
        if not any(_is_made_of(network, other, node.inputs[0], streams) for other in node.inputs[1:])
    }
    return streams, inverted


def _is_made_of(network: Network, name: str, stream: str, streams: set[str]) -> bool:
    """Whether a tensor is made of a stream, not going through others."""
    seen, waiting = {name}, [name]
    while waiting:
        here = waiting.pop()
        if here not in streams and here != INPUT:
            new = set(network.nodes[here].inputs) - seen
            seen |= new
            waiting += new
    return stream in seen
