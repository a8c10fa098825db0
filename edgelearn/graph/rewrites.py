"""Copies of networks with other layers: a new head, parts of a tensor, no softmax or dropout; and reversible blocks.

Residual blocks become additive couplings over two streams of full width, for any network: consecutive blocks x ← x +
F(x) become x₁, x₂ ← x₂, x₁ + F(x₂). Every block adds to the stream that the block before left unchanged (Gomez et al.
2017, arXiv 1707.04585, where F and G are two such blocks), so that x₁ can be recovered as the sum minus F(x₂). Both
streams start as the input of the row and are added at its end. That sum is 2 x + Σ F: each block contributes as in the
original network. Parameters, multiply-adds and layer names are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from typing import TypeVar

from edgelearn.errors import PlanError, ShapeError
from edgelearn.ops import (
    Activation,
    Add,
    Concatenate,
    Conv2D,
    Coupling,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    LogSoftmax,
    Op,
    Slice,
    Softmax,
    SpatialDropout2D,
    Stream,
)
from edgelearn.ops.merge import STEP
from edgelearn.ops.recurrent import Recurrent
from edgelearn.ops.shapes import positions

from .network import Network, Node

T = TypeVar("T")


def ancestors(nodes: Iterable[T], sources: Callable[[T], Iterable[T]]) -> set[T]:
    """`nodes` and everything that they depend on, where `sources(node)` are the direct dependencies of a node."""
    seen = set(nodes)
    waiting = list(seen)
    while waiting:
        new = set(sources(waiting.pop())) - seen
        seen |= new
        waiting += new
    return seen


def add_split(
    network: Network, name: str, parts: int | Sequence[int], x: str | None = None, axis: int = -1
) -> list[str]:
    """Add layers "`name`_1", "`name`_2", ... that divide a tensor, and return their names. An op has one output, so
    each part is a Slice.

    Arguments:
    - `network`: to add the layers to.
    - `name`: begins their names.
    - `parts`: number of equal parts, or the size of each.
    - `x`: name of the layer to divide (default: the last one).
    - `axis`: of an example; 1 is the first, as 0 is the batch (default -1, the channels).

    Raises ShapeError if the parts don't add up to the axis.
    """
    x = network.output.name if x is None else x
    shape = network.shape_of(x)
    (index,) = positions(axis, shape)
    n = shape[index]
    if isinstance(parts, int) and (parts < 1 or n % parts):
        raise ShapeError(f"An axis of {n} has no {parts} equal parts: give the size of each.")
    sizes = [n // parts] * parts if isinstance(parts, int) else list(parts)
    if sum(sizes) != n:
        raise ShapeError(f"Parts of {sizes} are {sum(sizes)} in all, but the axis of '{x}' has {n}.")
    names = []
    for number, (begin, size) in enumerate(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True), start=1):
        begins, counts = [0] * len(shape), [-1] * len(shape)
        begins[index], counts[index] = begin, size
        names.append(network.add(f"{name}_{number}", Slice(tuple(begins), tuple(counts)), x))
    return names


def add_bidirectional(network: Network, name: str, op: Recurrent, x: str | None = None, mask: str = "") -> str:
    """Add a recurrent layer that reads a sequence in both directions, as Keras's Bidirectional and PyTorch's
    `bidirectional=True`, and return the name of the layer that has the outputs of both side by side.

    >>> add_bidirectional(network, "both", LSTM(32, return_sequences=True))

    Arguments:
    - `network`: to add the layers to: "`name`_forward", "`name`_backward", and `name`, a Concatenate.
    - `name`: of the last layer, and begins the names of the others.
    - `op`: an LSTM or a GRU without `return_state` and `go_backwards`.
    - `x`: name of the sequence (default: the last layer).
    - `mask`: name of a mask of its steps (default "": none).

    Raises ShapeError for an op with these settings, or a sequence that it doesn't take.
    """
    if not isinstance(op, Recurrent) or op.return_state or op.go_backwards:
        raise ShapeError(f"Expected an LSTM or GRU without return_state and go_backwards, got {op!r:.80}.")
    x = network.output.name if x is None else x
    inputs = [x, *([mask] if mask else [])]
    one = network.add(f"{name}_forward", op, *inputs)
    two = network.add(f"{name}_backward", replace(op, go_backwards=True), *inputs)
    if op.return_sequences:
        two = network.add(f"{name}_turned", Slice((-1, 0), (-1, -1), (-1, 1)), two)
    return network.add(name, Concatenate(), one, two)


def replace_head(network: Network, classes: int, name: str = "head") -> Network:
    """Copy `network` with a new Dense layer and a Softmax in place of its classifier.

    The classifier is the last layer with weights, a Dense or a 1 x 1 convolution, and what follows it. A network that
    doesn't end in one keeps all its layers, and the new ones follow. Images before the new layer are averaged.

    Arguments:
    - `network`: a classifier or a feature extractor with one output.
    - `classes`: outputs of the new layer.
    - `name`: of the new layer (default "head"); with a number behind it if a layer is called so.

    Raises PlanError for a network with several outputs. The new layer's name is that of the last but one layer.
    """
    old = _classifier(network)
    if old is None:
        body, end = list(network.nodes.values()), network.output.name
    else:
        (end,) = old.inputs
        needed = ancestors([end], lambda node: network.nodes[node].inputs if node in network.nodes else ())
        body = [node for node in network.nodes.values() if node.name in needed]
    result = Network(network.name, network.inputs)
    for node in body:
        result.add_like(node, *node.inputs)
    result.trainable = network.trainable & set(result.parameters)

    def free(wanted: str) -> str:
        taken = (*result.nodes, *result.inputs)
        return next(n for n in (wanted, *(f"{wanted}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)

    shape = result.shape_of(end)
    if len(shape) > 1:
        whole = len(shape) != 3 or shape[:2] == (1, 1)
        end = result.add(free(f"{name}_features"), Flatten() if whole else GlobalAveragePooling2D(), end)
    result.add(free(name), Dense(classes), end)
    result.add(free(f"{name}_softmax"), Softmax())
    return result


def _classifier(network: Network) -> Node | None:
    """The last layer with weights, if it is a Dense or a 1 x 1 convolution that gives scores: a Softmax follows it, or
    no activation does."""
    node, passed = network.output, []
    while len(node.inputs) == 1:
        shapes = network.input_shapes(node.inputs)
        if isinstance(node.op, Dense | Conv2D):
            pointwise = isinstance(node.op, Dense) or node.op.window(shapes[0]).is_pointwise
            single = isinstance(node.op, Dense) or shapes[0][:2] == (1, 1)
            scores = any(isinstance(op, LogSoftmax | Softmax) for op in passed)
            plain = single and not any(isinstance(op, Activation) for op in passed)
            return node if pointwise and (scores or plain) else None
        if node.op.weights(*shapes) or node.inputs[0] not in network.nodes:
            return None
        passed.append(node.op)
        node = network.nodes[node.inputs[0]]
    return None


def without_softmax_and_dropout(network: Network) -> Network:
    """Copy `network` without a Softmax or LogSoftmax at an output that no other layer reads, and without dropout."""
    result, instead = Network(network.name, network.inputs), {}
    for node in network.nodes.values():
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        ends = node.name in network.outputs and not network.consumers(node.name)
        if isinstance(node.op, Dropout | SpatialDropout2D) or (ends and isinstance(node.op, LogSoftmax | Softmax)):
            instead[node.name] = inputs[0]
        else:
            result.add_like(node, *inputs)
    result.trainable = network.trainable & set(result.parameters)
    result.take_outputs(network, instead)
    return result


def reversible(network: Network, *marks: str, step: float = STEP) -> Network:
    """Copy `network` with residual blocks as couplings, whose inputs the backward pass can invert.

    Consecutive blocks form a row if only the next block reads the sum of one. Before a row the layer "<input>_stream"
    rounds to multiples of `step`; after it "<last Add>_streams" adds the two streams.

    Arguments:
    - `marks`: names or patterns of the Adds that end the blocks (default: all with an identity shortcut).
    - `step`: rounding step of the streams (see ops/merge.py); 0 doesn't round.

    Raises PlanError if a mark matches no such Add, or no row has two blocks: then no stream could be inverted.
    """
    shortcuts = _marked(network, marks)
    continued = _continued(network, shortcuts)
    begins = set(shortcuts.values()) - set(shortcuts) if step else set()
    result = Network(f"{network.name}_reversible", network.inputs)
    renamed: dict[str, str] = {}  # tensor of the original network → tensor to read instead
    others: dict[str, str] = {}  # sum → the other stream, to which the next block adds

    def added(name: str, op: Op, *inputs: str, shares: str = "") -> None:
        result.add(name, op, *(renamed.get(i, i) for i in inputs), shares=shares)
        if name in begins:
            renamed[name] = result.add(f"{name}_stream", Stream(step))

    for name in begins & set(network.inputs):
        renamed[name] = result.add(f"{name}_stream", Stream(step), name)
    for node in network.nodes.values():
        if node.name not in shortcuts:
            added(node.name, node.op, *node.inputs, shares=node.shares)
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
