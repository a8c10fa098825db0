"""How saved activations come back when the backward pass needs them: a choice of the plan for each tensor.

A tensor goes by the name of the layer that gives it; where layers run as one kernel it has all their names. It is kept
unless all of them have a way back, and recomputed only if they all say so: to have it back otherwise, say so of the
last of them, which gives it. A tensor that isn't kept lives until the forward pass has read it. graph/ways.py has the
ways, and graph/policies.py makes such choices for whole networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgelearn.compile.precision.precision import Precision
from edgelearn.errors import PlanError
from edgelearn.graph.ancestors import ancestors
from edgelearn.graph.network import Network

from .strategies import Invert, Offload, Recompute, Strategy

ActivationMemory = Mapping[str, Strategy]  # by layer


def check(network: Network, activation_memory: ActivationMemory, precision: Precision) -> None:
    """Raises PlanError for choices that can't be."""
    for name, way in activation_memory.items():
        if name not in network.nodes:
            raise PlanError(f"'{name}' is to come back by {way}, but '{network.name}' has no such layer.")
        if not isinstance(way, Strategy):
            raise PlanError(
                f"'{name}' is to come back by {way!r}, which is no way back, such as Recompute() or Mask()."
            )
        way.check(name, network, precision)
    if len(places := {str(way) for way in activation_memory.values() if isinstance(way, Offload)}) > 1:
        raise PlanError(f"The pages of a plan are in one place, not in several: {', '.join(sorted(places))}.")
    approximate = _approximate(network, activation_memory)
    for name, way in activation_memory.items():
        if name in approximate and isinstance(way, Invert):
            raise PlanError(
                f"'{name}' is to be had back from '{way.layer}' by tensors that come back only nearly as they were, "
                f"and over many layers errors would grow: keep, recompute or page these, or don't invert."
            )
    for node in network.nodes.values():
        recomputed = isinstance(activation_memory.get(node.name), Recompute)
        if node.op.compares and not recomputed and approximate.intersection((node.name, *node.inputs)):
            raise PlanError(
                f"'{node.name}' ({type(node.op).__name__}) looks for its output among its inputs when gradients go "
                f"back, but one of these comes back only nearly as it was: recompute '{node.name}', or keep both."
            )


def _approximate(network: Network, activation_memory: ActivationMemory) -> set[str]:
    """The layers whose tensors come back only nearly as they were, or may: made of such tensors."""
    lossy = {name for name, way in activation_memory.items() if way.lossy}
    sources = {
        name: network.nodes[name].inputs for name, way in activation_memory.items() if isinstance(way, Recompute)
    }
    sources |= {
        name: {way.layer, *network.nodes[way.layer].inputs[1:]}
        for name, way in activation_memory.items()
        if isinstance(way, Invert)
    }
    return {name for name in activation_memory if lossy & ancestors([name], lambda here: sources.get(here, ()))}


def pages_of(ways: Iterable[Strategy]) -> Offload | None:
    """Where their pages are, if they have any."""
    return next((way for way in ways if isinstance(way, Offload)), None)


def way_of(names: Iterable[str], activation_memory: ActivationMemory) -> Strategy | None:
    """Of a tensor that goes by all these names; None if it is kept."""
    ways = [activation_memory.get(name) for name in names]
    if None in ways:
        return None
    return next((way for way in ways if not isinstance(way, Recompute)), ways[-1])
