"""Residual blocks as additive couplings over two streams of full width, for any network.

Consecutive residual blocks x ← x + F(x) become x₁, x₂ ← x₂, x₁ + F(x₂): every block adds to the stream that the block
before left unchanged (Gomez et al. 2017, arXiv 1707.04585, where F and G are two such blocks), so that x₁ can be
recovered as the sum minus F(x₂). Both streams start as the input of the row and are added at its end. That sum is
2 x + Σ F: each block contributes as in the original network. Parameters, multiply-adds and layer names are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial

from edgelearn.errors import PlanError
from edgelearn.ops import Add, Coupling, Op, Stream
from edgelearn.ops.coupling import STEP

from .ancestors import ancestors
from .network import Network, Node


def reversible(network: Network, *marks: str, step: float = STEP) -> Network:
    """Copy `network` with residual blocks as couplings, whose inputs the backward pass can invert.

    Consecutive blocks form a row if only the next block reads the sum of one. Before a row the layer "<input>_stream"
    rounds to multiples of `step`; after it "<last Add>_streams" adds the two streams.

    Arguments:
    - `marks`: names or patterns of the Adds that end the blocks (default: all with an identity shortcut).
    - `step`: rounding step of the streams (see ops/coupling.py); 0 doesn't round.

    Raises PlanError if a mark matches no such Add, or no row has two blocks: then no stream could be inverted.
    """
    shortcuts = _marked(network, marks)
    continued = _continued(network, shortcuts)
    begins = set(shortcuts.values()) - set(shortcuts) if step else set()
    result = Network(f"{network.name}_reversible", network.inputs)
    renamed: dict[str, str] = {}  # tensor of the original network → tensor to read instead
    others: dict[str, str] = {}  # sum → the other stream, to which the next block adds

    def added(name: str, op: Op, *inputs: str) -> None:
        result.add(name, op, *(renamed.get(i, i) for i in inputs))
        if name in begins:
            renamed[name] = result.add(f"{name}_stream", Stream(step))

    for name in begins & set(network.inputs):
        renamed[name] = result.add(f"{name}_stream", Stream(step), name)
    for node in network.nodes.values():
        if node.name not in shortcuts:
            added(node.name, node.op, *node.inputs)
            continue
        x = shortcuts[node.name]
        added(node.name, Coupling(step), others.get(x, x), _share(node, x))
        other = renamed.get(x, x)
        if node.name in continued:
            others[node.name] = other
        else:
            renamed[node.name] = result.add(f"{node.name}_streams", Add(), node.name, other)
    if not invertible_streams(result)[1]:
        raise PlanError(
            f"No stream of '{network.name}' could be inverted: that needs at least two consecutive residual blocks "
            f"with nothing between them, such as the activations of ResNets. Mark such blocks, put activations first "
            f"in the blocks (as models.revnet does), or recompute activations."
        )
    result.trainable = set(network.trainable)
    result.take_outputs(network, renamed)
    return result


def _marked(network: Network, marks: tuple[str, ...]) -> dict[str, str]:
    """Map each marked Add to its shortcut: the input on which the other input depends. Adds that sum the two streams
    of a row don't count."""
    streams, _ = invertible_streams(network)
    adds = [n for n in network.nodes.values() if isinstance(n.op, Add) and not streams.issuperset(n.inputs)]
    found = {n.name: x for n in adds if (x := _shortcut(network, n))}
    for mark in marks:
        if not any(fnmatchcase(name, mark) for name in found):
            raise PlanError(
                f"'{mark}' matches no residual block of '{network.name}', an Add of two tensors, one computed from the "
                f"other. It has: {', '.join(found) or 'none'}."
            )
    return {name: x for name, x in found.items() if not marks or any(fnmatchcase(name, mark) for mark in marks)}


def _continued(network: Network, shortcuts: Mapping[str, str]) -> set[str]:
    """Sums that only the next block reads. Other readers get the two streams added."""
    continued = set()
    for name, x in shortcuts.items():
        block = ancestors([_share(network.nodes[name], x)], partial(_inputs, network)) | {name}
        if x in shortcuts and all(node.name in block for node in network.nodes.values() if x in node.inputs):
            continued.add(x)
    return continued


def _share(node: Node, x: str) -> str:
    """The tensor that a block adds to its shortcut `x`."""
    (f,) = set(node.inputs) - {x}
    return f


def _shortcut(network: Network, node: Node) -> str | None:
    if len(node.inputs) != 2 or isinstance(node.op, Coupling):
        return None
    if any(network.shape_of(name) != node.shape for name in node.inputs):  # one is broadcast: no stream to add to
        return None
    for x, f in (node.inputs, node.inputs[::-1]):
        if x != f and x in ancestors([f], partial(_inputs, network)):
            return x
    return None


def invertible_streams(network: Network) -> tuple[set[str], dict[str, str]]:
    """Names of all streams (first inputs and outputs of invertible layers), and for each stream that can be inverted,
    the layer that does it: its other inputs don't depend on the stream. The network's input is excluded: it is always
    available."""
    layers = [node for node in network.nodes.values() if node.op.invertible]
    streams = {node.inputs[0] for node in layers} | {node.name for node in layers}
    inverted = {
        node.inputs[0]: node.name
        for node in layers
        if node.inputs[0] not in network.inputs
        and not any(_is_made_of(network, other, node.inputs[0], streams) for other in node.inputs[1:])
    }
    return streams, inverted


def _is_made_of(network: Network, name: str, stream: str, streams: set[str]) -> bool:
    """True if a tensor depends on a stream by a path that crosses no other stream."""
    return stream in ancestors([name], lambda node: () if node in streams else _inputs(network, node))


def _inputs(network: Network, name: str) -> tuple[str, ...]:
    return () if name in network.inputs else network.nodes[name].inputs
