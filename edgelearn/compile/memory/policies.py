"""Policies: functions from a network to an `ActivationMemory`, a strategy for each layer whose output is not stored.

>>> make_plan(Request(network, optimizer=SGD(0.1), saving=checkpoints(network)), device)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf, isqrt, prod

from edgelearn.graph.fuse import fuse
from edgelearn.graph.network import INPUT, Network
from edgelearn.graph.reversible import invertible_streams
from edgelearn.ops import Add, Concatenate, Float16, Format, NumberFormat

from .strategies import Compress, Encoding, Invert, Offload, Recompute, Strategy


def keep_all(network: Network) -> dict[str, Strategy]:
    """What frameworks do by default: everything the backward pass reads is kept."""
    return {}


def checkpoints(network: Network) -> dict[str, Strategy]:
    """Every block is recomputed from its input."""
    return _recomputed(network, set().union(*cuts(network)))


def square_root(network: Network) -> dict[str, Strategy]:
    """Of n blocks every √n are recomputed from the first one's input, so that memory grows with the root of the depth
    (Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174, section 4.1)."""
    return _recomputed(network, set().union(*_every_root(cuts(network))))


def nested(network: Network) -> dict[str, Strategy]:
    """As `square_root`, and among those blocks every one once more (section 4.4 of that paper): a third forward pass
    for less memory."""
    found = cuts(network)
    ways = _recomputed(network, set().union(*_every_root(found)), level=2)
    inner = _recomputed(network, set().union(*found))
    return {name: way if name in inner else Recompute(1) for name, way in ways.items()}


def invertible(network: Network) -> dict[str, Strategy]:
    """Streams are inverted but for the last two, the insides of blocks recomputed (Gomez et al. 2017, "The reversible
    residual network", arXiv 1707.04585); what no stream passes through, as `checkpoints`."""
    streams, inverted = invertible_streams(network)
    joins = (node for node in network.nodes.values() if isinstance(node.op, Add | Concatenate))
    joined = {node.name for node in joins if streams.issuperset(node.inputs)}
    kept = streams.union(*(cut for cut in cuts(network) if not cut & (streams | joined)))
    inverses = {name: Invert(layer) for name, layer in inverted.items()}
    return _recomputed(network, kept) | inverses


def compressed(network: Network, kept_in: NumberFormat = Format(8)) -> dict[str, Strategy]:  # noqa: B008
    """Everything is `kept_in` a format; what BatchNorm writes is recomputed from what it reads. Gradients are
    approximate."""
    return _stashed(network, Compress(kept_in))


def halves(network: Network) -> dict[str, Strategy]:
    """As `compressed`, to half precision."""
    return compressed(network, Float16())


def paged(network: Network, folder: str | None = None) -> dict[str, Strategy]:
    """Everything is paged to the host's memory, or to a file in `folder`; what BatchNorm writes is recomputed from what
    it reads (Peng et al. 2020, "Capuchin"; Rhu et al. 2016, "vDNN", arXiv 1602.08124)."""
    return _stashed(network, Offload(folder))


EXACT = (keep_all, checkpoints, square_root, nested, invertible)
POLICIES: dict[str, Callable[[Network], dict[str, Strategy]]] = {
    policy.__name__: policy for policy in (*EXACT, paged, halves, compressed)
}


def cuts(network: Network) -> list[frozenset[str]]:
    """Where blocks end: the tensors that hold what is yet to be read, by layer, at places where there are fewer of them
    than in the places around, and where they are no larger than right before and after. In a plain network it is one,
    amid streams two."""
    stages = fuse(network)
    last = {name: number for number, stage in enumerate(stages) for name in stage.inputs}
    lives = [frozenset([INPUT])]
    for number, stage in enumerate(stages[:-1]):
        lives.append(frozenset(n for n in lives[-1] | {stage.output.name} if last.get(n, -1) > number))
    runs = [list(run) for _, run in groupby(lives, len)]
    counts = [len(run[0]) for run in runs]
    fewest = [run for run, count, around in zip(runs, counts, _around(counts), strict=True) if count < min(around)]
    found: list[frozenset[str]] = []
    for run in fewest:
        sizes = [sum(prod(network.shape_of(name)) for name in live) for live in run]
        found += [live for live, size, around in zip(run, sizes, _around(sizes), strict=True) if size <= min(around)]
    return [live - {INPUT} for live in dict.fromkeys(found) if live != {INPUT}]


def _around(heights: Sequence[int]) -> list[tuple[float, float]]:
    """What is before and after each of them."""
    return list(zip([inf, *heights[:-1]], [*heights[1:], inf], strict=True))


def _every_root(found: list[frozenset[str]]) -> list[frozenset[str]]:
    return found[:: max(1, isqrt(len(found)))]


def _stashed(network: Network, way: Encoding) -> dict[str, Strategy]:
    """What follows from another tensor at once is recomputed: what BatchNorm writes, and what an op compares."""
    normalized = {node.name for stage in fuse(network) if stage.norm for node in stage.nodes if node is not stage.op}
    return {
        name: Recompute() if name in normalized or node.op.compares else way for name, node in network.nodes.items()
    }


def _recomputed(network: Network, kept: set[str], level: int = 1) -> dict[str, Strategy]:
    """What BatchNorm reads is kept in place of what it writes: the backward pass needs both, and the second follows
    from the first without the convolution."""
    normalized = {stage.output.name: stage.op.name for stage in fuse(network) if stage.op and stage.norm}
    kept = {normalized.get(name, name) for name in kept}
    return {name: Recompute(level) for name in network.nodes if name not in kept}
