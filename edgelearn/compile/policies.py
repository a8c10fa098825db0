"""Policies: functions from a network to an `ActivationMemory`, a strategy for each layer whose output is not stored.

>>> make_plan(Request(network, optimizer=SGD(0.1), activation_memory=checkpoints(network)), device)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import isclass
from itertools import groupby
from math import inf, isqrt, prod
from typing import cast

from edgelearn.errors import ExtensionError
from edgelearn.extensions import check_name, import_instance, import_object, is_reference
from edgelearn.graph.network import Network, Node
from edgelearn.graph.rewrites import fuse, invertible_streams
from edgelearn.ops import (
    Activation,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    DepthwiseConv1D,
    DepthwiseConv2D,
    Flatten,
    Float16,
    Format,
    GlobalAveragePooling2D,
    LinearOp,
    NumberFormat,
    Reshape,
    SliceChannels,
)

from .memory import Compress, Encoding, Invert, Mask, MemoryStrategy, Offload, Recompute, steps_of


def keep_all(network: Network) -> dict[str, MemoryStrategy]:
    """Store everything that the backward pass reads, as frameworks do by default."""
    return {}


def checkpoints(network: Network) -> dict[str, MemoryStrategy]:
    """Recompute every block from its input."""
    return _recompute_others(network, set().union(*cuts(network)))


def square_root(network: Network) -> dict[str, MemoryStrategy]:
    """Recompute every √n of n blocks from the first one's input, so that memory grows with the root of the depth (Chen
    et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174, section 4.1)."""
    return _recompute_others(network, set().union(*_every_root(cuts(network))))


def nested(network: Network) -> dict[str, MemoryStrategy]:
    """As `square_root`, and each block of these once more (section 4.4 of that paper): less memory for a third forward
    pass."""
    blocks = cuts(network)
    outer = _recompute_others(network, set().union(*_every_root(blocks)), nesting=2)
    inner = _recompute_others(network, set().union(*blocks))
    return {name: strategy if name in inner else Recompute(1) for name, strategy in outer.items()}


def invertible(network: Network) -> dict[str, MemoryStrategy]:
    """Invert all streams except the last two, and recompute the insides of blocks (Gomez et al. 2017, "The reversible
    residual network", arXiv 1707.04585); where no stream passes, as `checkpoints`."""
    streams, inverted = invertible_streams(network)
    joins = (node for node in network.nodes.values() if isinstance(node.op, Add | Concatenate))
    joined = {node.name for node in joins if streams.issuperset(node.inputs)}
    stored = streams.union(*(cut for cut in cuts(network) if not cut & (streams | joined)))
    inverses = {name: Invert(layer) for name, layer in inverted.items()}
    return _recompute_others(network, stored) | inverses


def masks(network: Network) -> dict[str, MemoryStrategy]:
    """Hold one bit for each value of a ReLU that only gradients pass, and store the rest: a 32nd where the layers above
    are frozen or train biases alone (Cai et al. 2020, "TinyTL", arXiv 2007.11622)."""
    strategies: dict[str, MemoryStrategy] = {}
    for stage in fuse(network, sums=True):
        last = stage.output
        gate = isinstance(last.op, Activation) and last.op.function.two_slopes and last.name not in network.outputs
        if gate and not any(_reads_values(network, reader) for reader in network.consumers(last.name)):
            strategies |= {node.name: Recompute() for node in stage.nodes} | {last.name: Mask()}
    return strategies


def _reads_values(network: Network, node: Node) -> bool:
    """True if the backward pass of a layer reads what it is given: a linear op does for its kernel and for the scale of
    the BatchNorm after it."""
    if isinstance(node.op, LinearOp):
        readers = network.consumers(node.name)
        scales = [f"{reader.owner}/gamma" for reader in readers if isinstance(reader.op, BatchNormalization)]
        return not network.trainable.isdisjoint([f"{node.owner}/kernel", *scales])
    return not isinstance(node.op, PASSING)


# Ops whose backward pass reads gradients alone.
PASSING = (Add, AveragePooling2D, Concatenate, Flatten, GlobalAveragePooling2D, Reshape, SliceChannels)


def compressed(network: Network, format: NumberFormat = Format(8)) -> dict[str, MemoryStrategy]:  # noqa: A002, B008
    """Compress everything to `format`, and recompute outputs of BatchNorms from their inputs. Gradients are
    approximate."""
    return _encoded(network, Compress(format))


def compressed_masks(network: Network) -> dict[str, MemoryStrategy]:
    """As `masks`, and compress what else is stored to 8 bits: gradients of kernels are approximate."""
    return compressed(network) | masks(network)


def compressed_checkpoints(network: Network) -> dict[str, MemoryStrategy]:
    """Compress the inputs of convolutions across channels to 8 bits, store those of Dense layers, recompute the rest:
    of two layers, a depthwise and a pointwise convolution, one tensor is stored. Gradients are approximate."""
    readers = [node for node in network.nodes.values() if isinstance(node.op, LinearOp) and not _is_depthwise(node)]
    dense = {name for node in readers for name in node.inputs if len(node.shape) == 1}
    others = {name for node in readers for name in node.inputs if name in network.nodes} - dense
    return _recompute_others(network, dense) | dict.fromkeys(others, Compress(Format(8)))


def _is_depthwise(node: Node) -> bool:
    return isinstance(node.op, DepthwiseConv1D | DepthwiseConv2D)


def halves(network: Network) -> dict[str, MemoryStrategy]:
    """As `compressed`, to half precision."""
    return compressed(network, Float16())


def paged(network: Network, folder: str | None = None) -> dict[str, MemoryStrategy]:
    """Offload everything to the host's memory, or to a file in `folder`, and recompute outputs of BatchNorms from their
    inputs (Peng et al. 2020, "Capuchin"; Rhu et al. 2016, "vDNN", arXiv 1602.08124)."""
    return _encoded(network, Offload(folder))


EXACT = (keep_all, checkpoints, square_root, nested, invertible)
ROUNDED = (halves, compressed, compressed_masks, compressed_checkpoints)  # gradients are approximate
POLICIES: dict[str, Callable[[Network], dict[str, MemoryStrategy]]] = {
    policy.__name__: policy for policy in (*EXACT, masks, paged, *ROUNDED)
}


def cuts(network: Network) -> list[frozenset[str]]:
    """Ends of blocks, in order: sets of layers whose outputs are all that later layers read.

    A cut is a place where these are fewer than in the places around, and no larger than right before and after: one
    layer in a plain network, two amid streams.
    """
    stages = fuse(network)
    last = {name: number for number, stage in enumerate(stages) for name in stage.inputs}
    inputs = frozenset(network.inputs)
    lives = [inputs]
    for number, stage in enumerate(stages[:-1]):
        lives.append(frozenset(n for n in lives[-1] | {stage.output.name} if last.get(n, -1) > number))
    runs = [list(run) for _, run in groupby(lives, len)]
    counts = [len(run[0]) for run in runs]
    fewest = [run for run, count, around in zip(runs, counts, _around(counts), strict=True) if count < min(around)]
    blocks: list[frozenset[str]] = []
    for run in fewest:
        sizes = [sum(prod(network.shape_of(name)) for name in live) for live in run]
        blocks += [live for live, size, around in zip(run, sizes, _around(sizes), strict=True) if size <= min(around)]
    return _with_steps(network, [live - inputs for live in dict.fromkeys(blocks) if live - inputs])


def _with_steps(network: Network, blocks: list[frozenset[str]]) -> list[frozenset[str]]:
    """The ends of blocks, and those within recurrent layers: states after stretches, before what the layer gives."""
    places = {name: place for place, name in enumerate(network.nodes)}
    states = dict.fromkeys((before, layer) for layer, before in steps_of(network).values() if before)
    ends = [(max(places[name] for name in block), block) for block in blocks]
    within = [(places[layer], frozenset([name])) for name, layer in states]
    return [block for _, block in sorted([*within, *ends], key=lambda end: end[0])]


def _around(heights: Sequence[int]) -> list[tuple[float, float]]:
    """The heights before and after each."""
    return list(zip([inf, *heights[:-1]], [*heights[1:], inf], strict=True))


def _every_root(blocks: list[frozenset[str]]) -> list[frozenset[str]]:
    return blocks[:: max(1, isqrt(len(blocks)))]


def _encoded(network: Network, encoding: Encoding) -> dict[str, MemoryStrategy]:
    """Outputs of BatchNorms, and of ops that search their inputs for them, follow at once from another tensor: they are
    recomputed."""
    normalized = {node.name for stage in fuse(network) if stage.norm for node in stage.nodes if node is not stage.op}
    layers: dict[str, MemoryStrategy] = {
        name: Recompute() if name in normalized or node.op.compares else encoding
        for name, node in network.nodes.items()
    }
    return layers | dict.fromkeys(steps_of(network), encoding)


def find_policy(name: str) -> Callable[[Network], dict[str, MemoryStrategy]]:
    """The policy that is called so, or MODULE:NAME: a function from a network to strategies, or an Encoding, which then
    holds every activation. Raises UsageError for another name, ExtensionError if nothing can be imported."""
    if name in POLICIES:
        return POLICIES[name]
    if not is_reference(name):
        check_name(name, POLICIES, "policy", "MODULE:NAME")
    found = import_object(name)
    if isinstance(found, Encoding) or isclass(found):
        return partial(_encoded, encoding=import_instance(name, Encoding))
    if callable(found):
        return cast("Callable[[Network], dict[str, MemoryStrategy]]", found)
    raise ExtensionError(f"'{name}' is neither a policy nor an Encoding, but {found!r:.80}.")


def _recompute_others(network: Network, stored: set[str], nesting: int = 1) -> dict[str, MemoryStrategy]:
    """Recompute all outputs but those in `stored`. A stored BatchNorm is replaced by its input: the backward pass needs
    both, and the output follows from the input without the convolution."""
    normalized = {stage.output.name: stage.op.name for stage in fuse(network) if stage.op and stage.norm}
    stored = {normalized.get(name, name) for name in stored}
    return {name: Recompute(nesting) for name in (*network.nodes, *steps_of(network)) if name not in stored}
