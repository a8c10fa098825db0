"""Residual blocks as additive couplings over two streams of full width, for any network.

Plain residual blocks in a row, x ← x + F(x), become x₁, x₂ ← x₂, x₁ + F(x₂): every block adds to the stream that the
block before has left alone (Gomez et al. 2017, arXiv 1707.04585, whose F and G are two such blocks), so that x₁ comes
back as the sum less F(x₂). Both streams begin as the input of the row, and behind it they are added up. That
sum is 2 x + Σ F: each block counts as it does in the plain network. Parameters and multiply-adds are the plain ones, to
the last one, and so are the names of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial

from edgelearn.errors import PlanError
from edgelearn.ops import Add, Coupling, Op, Stream
from edgelearn.ops.coupling import STEP

from .ancestors import ancestors
from .network import INPUT, Network, Node


def reversible(network: Network, *marks: str, step: float = STEP) -> Network:
    """The network with its marked residual blocks as couplings: those whose Add goes by one of these names or patterns,
    or without marks all whose shortcut is the identity. Blocks whose sum nothing but the next block reads form a row,
    before which the layer "<input>_stream" rounds to multiples of `step` (see ops/coupling.py; nothing is rounded if
    that is 0), and behind which "<last Add>_streams" adds up. Raises PlanError for a mark that is no such Add, and
    where no row is of two blocks or more, since then no stream could be had back."""
    shortcuts = _marked(network, marks)
    continued = _continued(network, shortcuts)
    begins = set(shortcuts.values()) - set(shortcuts) if step else set()
    found = Network(f"{network.name}_reversible", network.input_shape)
    renamed: dict[str, str] = {}  # what is read instead of a tensor of the plain network
    others: dict[str, str] = {}  # of a sum, the other stream: the next block adds to it

    def added(name: str, op: Op, *inputs: str) -> None:
        found.add(name, op, *(renamed.get(i, i) for i in inputs))
        if name in begins:
            renamed[name] = found.add(f"{name}_stream", Stream(step))

    if INPUT in begins:
        renamed[INPUT] = found.add(f"{INPUT}_stream", Stream(step), INPUT)
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
            renamed[node.name] = found.add(f"{node.name}_streams", Add(), node.name, other)
    if not invertible_streams(found)[1]:
        raise PlanError(
            f"No stream of '{network.name}' could be had back: of residual blocks that are coupled at least two follow "
            f"each other, with nothing between the sum of one and the next, such as the activations of ResNets. Mark "
            f"such blocks, put activations first in the blocks (as models.revnet does), or recompute activations."
        )
    found.trainable = set(network.trainable)
    return found


def _marked(network: Network, marks: tuple[str, ...]) -> dict[str, str]:
    """The marked Adds, and what the shortcut of each is: the input that the other one is made of. What adds up streams
    behind a row is none."""
    streams, _ = invertible_streams(network)
    adds = [n for n in network.nodes.values() if isinstance(n.op, Add) and not streams.issuperset(n.inputs)]
    found = {n.name: x for n in adds if (x := _shortcut(network, n))}
    for mark in marks:
        if not any(fnmatchcase(name, mark) for name in found):
            raise PlanError(
                f"'{mark}' marks no residual block of '{network.name}': an Add of two tensors, one of which is made of "
                f"the other. It has: {', '.join(found) or 'none'}."
            )
    return {name: x for name, x in found.items() if not marks or any(fnmatchcase(name, mark) for mark in marks)}


def _continued(network: Network, shortcuts: Mapping[str, str]) -> set[str]:
    """The sums that nothing but the next block reads. What else reads one gets both streams, added up."""
    found = set()
    for name, x in shortcuts.items():
        block = ancestors([_share(network.nodes[name], x)], partial(_inputs, network)) | {name}
        if x in shortcuts and all(node.name in block for node in network.nodes.values() if x in node.inputs):
            found.add(x)
    return found


def _share(node: Node, x: str) -> str:
    """What a block adds to its shortcut `x`."""
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
    """All streams, which are the first inputs of invertible layers and what these give; and the layer by which a stream
    can be had back, where the layer's other inputs are made of other streams. The network's input is kept anyway."""
    layers = [node for node in network.nodes.values() if node.op.invertible]
    streams = {node.inputs[0] for node in layers} | {node.name for node in layers}
    inverted = {
        node.inputs[0]: node.name
        for node in layers
        if node.inputs[0] != INPUT
        and not any(_is_made_of(network, other, node.inputs[0], streams) for other in node.inputs[1:])
    }
    return streams, inverted


def _is_made_of(network: Network, name: str, stream: str, streams: set[str]) -> bool:
    """Whether a tensor is made of a stream, not going through others."""
    return stream in ancestors([name], lambda here: () if here in streams else _inputs(network, here))


def _inputs(network: Network, name: str) -> tuple[str, ...]:
    return () if name == INPUT else network.nodes[name].inputs
