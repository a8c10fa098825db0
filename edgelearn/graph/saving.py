"""How saved activations come back when the backward pass needs them: a choice of the plan for each tensor.

A tensor goes by the name of the layer that gives it. Tensors without a way back are kept; the others live until the
forward pass has read them. Policies are functions from a network to such choices.

>>> make_plan(Request(network, optimizer=SGD(0.1), saving=checkpoints(network)), device)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isqrt, prod
from typing import ClassVar

from edgelearn.errors import PlanError
from edgelearn.ops import Add, Concatenate

from .fuse import fuse
from .network import INPUT, Network


@dataclass(frozen=True)
class Recompute:
    """The launches of the forward pass run again, from the nearest tensors that are there. On the way to a tensor of a
    lower level, those of higher levels come and go; a second level is checkpoints within checkpoints."""

    level: int = 1


@dataclass(frozen=True)
class Invert:
    """The first input of an invertible layer comes back from the layer's output and other inputs."""

    layer: str
    level: ClassVar[int] = 1


Way = Recompute | Invert
Saving = Mapping[str, Way]  # by layer


def check(network: Network, saving: Saving) -> None:
    """Raises PlanError for choices that the network has no use for."""
    _, inverted = invertible_streams(network)
    for name, way in saving.items():
        if name not in network.nodes:
            raise PlanError(f"'{name}' is to come back by {way}, but '{network.name}' has no such layer.")
        if isinstance(way, Invert) and inverted.get(name) != way.layer:
            raise PlanError(
                f"'{name}' can't be had back from '{way.layer}': only the first input of a Coupling or SpaceToDepth "
                f"can, and only if the other input isn't made of it. Recompute it, or couple the network's residual "
                f"blocks (see graph/reversible.py)."
            )


def keep_all(network: Network) -> dict[str, Way]:
    """What frameworks do by default: everything the backward pass reads is kept."""
    return {}


def checkpoints(network: Network) -> dict[str, Way]:
    """Every block is recomputed from its input: kept are the network's waists."""
    return _recomputed(network, waists(network))


def square_root(network: Network) -> dict[str, Way]:
    """Of n waists only every √n-th is kept, so that memory grows with the root of the depth (Chen et al. 2016,
    "Training deep nets with sublinear memory cost", arXiv 1604.06174, section 4.1)."""
    found = waists(network)
    return _recomputed(network, found[:: max(1, isqrt(len(found)))])


def nested(network: Network) -> dict[str, Way]:
    """As `square_root`, and within such a segment every block once more (section 4.4 of that paper): a third forward
    pass for the memory of a single block."""
    found = waists(network)
    kept = found[:: max(1, isqrt(len(found)))]
    ways = _recomputed(network, kept, level=2)
    return ways | {name: Recompute(1) for name in found if name not in kept}


def invertible(network: Network) -> dict[str, Way]:
    """The streams of couplings are inverted but for the last two, the insides of blocks recomputed (Gomez et
    al. 2017, "The reversible residual network", arXiv 1707.04585); where there are none, as `checkpoints`."""
    streams, inverted = invertible_streams(network)
    joins = (node for node in network.nodes.values() if isinstance(node.op, Add | Concatenate))
    merged = {node.name for node in joins if node.name not in streams and streams.issuperset(node.inputs)}
    kept = (streams | set(waists(network))) - set(inverted) - merged
    return _recomputed(network, kept) | {name: Invert(layer) for name, layer in inverted.items()}


POLICIES: dict[str, Callable[[Network], dict[str, Way]]] = {
    policy.__name__: policy for policy in (keep_all, checkpoints, square_root, nested, invertible)
}


def waists(network: Network) -> list[str]:
    """Where the network is narrow: tensors through which everything passes, and that are no larger than the ones of
    that kind before and after them."""
    outputs = [stage.output.name for stage in fuse(network)]
    place = {name: number for number, name in enumerate([INPUT, *outputs])}
    last = {name: max((place[s.output.name] for s in fuse(network) if name in s.inputs), default=0) for name in place}
    gates, reach = [], last[INPUT]
    for name in outputs:
        if reach <= place[name]:
            gates.append(name)
        reach = max(reach, last[name])
    sizes = [prod(network.shape_of(name)) for name in [INPUT, *gates]]
    around = zip(gates, sizes[:-1], sizes[1:], [*sizes[2:], sizes[-1]], strict=True)
    return [name for name, before, size, after in around if size <= min(before, after)]


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


def _recomputed(network: Network, kept: Iterable[str], level: int = 1) -> dict[str, Way]:
    return {name: Recompute(level) for name in network.nodes if name not in set(kept)}
