"""Activation memory: a strategy for each layer's output, checked against the network.

A tensor goes by the name of the layer that writes it. Layers that run as one kernel share a tensor, which then has all
their names: it is stored unless each of them has another strategy, and recomputed only if all are. To restore it
otherwise, give that strategy to the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgelearn.compile.precision.precision import Precision
from edgelearn.errors import PlanError
from edgelearn.graph.ancestors import ancestors
from edgelearn.graph.network import Network

from .strategies.base import Store, Strategy
from .strategies.offload import Offload

ActivationMemory = Mapping[str, Strategy]  # by layer


def check(network: Network, activation_memory: ActivationMemory, precision: Precision) -> None:
    """Raises PlanError for unknown layers, for strategies that a layer or its neighbours can't have, and for pages in
    several places."""
    for name, strategy in activation_memory.items():
        if name not in network.nodes:
            raise PlanError(f"activation_memory names '{name}', but '{network.name}' has no such layer.")
        if not isinstance(strategy, Strategy):
            raise PlanError(
                f"activation_memory expects a strategy for '{name}', such as Recompute() or Store(), got {strategy!r}."
            )
        strategy.check(name, network, precision)
    if len(places := {s.place for s in activation_memory.values() if isinstance(s, Offload)}) > 1:
        raise PlanError(f"All activations of a plan are offloaded to one place, got {', '.join(sorted(places))}.")
    approximate = _approximate(network, activation_memory)
    for name, strategy in activation_memory.items():
        if strategy.needs_exact and name in approximate:
            raise PlanError(
                f"'{name}' can't have the strategy '{strategy}': it depends on tensors that are restored "
                f"approximately, and errors would grow from layer to layer. Store, recompute or offload those."
            )
    for node in network.nodes.values():
        recomputed = node.name in activation_memory and activation_memory[node.name].recomputes
        if node.op.compares and not recomputed and approximate.intersection((node.name, *node.inputs)):
            raise PlanError(
                f"'{node.name}' ({type(node.op).__name__}) searches its inputs for its output in the backward pass, "
                f"but one of these is restored approximately: recompute '{node.name}', or store both."
            )


def _approximate(network: Network, activation_memory: ActivationMemory) -> set[str]:
    """Layers whose restored outputs may differ from the original, since they or a source do."""
    sources = {name: strategy.sources(name, network) for name, strategy in activation_memory.items()}
    inexact = {name for name, strategy in activation_memory.items() if not strategy.exact}
    return {name for name in activation_memory if inexact & ancestors([name], lambda here: sources.get(here, ()))}


def strategy_of(names: Iterable[str], activation_memory: ActivationMemory) -> Strategy:
    """The strategy of a tensor that goes by all these names."""
    strategies = [activation_memory.get(name, Store()) for name in names]
    if any(strategy.stores for strategy in strategies):
        return Store()
    return next((strategy for strategy in strategies if not strategy.recomputes), strategies[-1])
