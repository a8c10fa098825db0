"""Copies of networks with other layers: a new head, parts of a tensor, no softmax or dropout; reversible blocks; and
stages: a linear op and the BatchNorm and activation after it run as one kernel, and so do a sum and an activation.

Residual blocks become additive couplings over two streams of full width, for any network: consecutive blocks x ← x +
F(x) become x₁, x₂ ← x₂, x₁ + F(x₂). Every block adds to the stream that the block before left unchanged (Gomez et al.
2017, arXiv 1707.04585, where F and G are two such blocks), so that x₁ can be recovered as the sum minus F(x₂). Both
streams start as the input of the row and are added at its end. That sum is 2 x + Σ F: each block contributes as in the
original network. Parameters, multiply-adds and layer names are unchanged.

Trained branches stand beside frozen layers: updates of some input channels of a kernel (Lin et al. 2022, "On-device
training under 256KB memory", arXiv 2206.15472), and low-rank adapters (Hu et al. 2021, "LoRA", arXiv 2106.09685). A
layer y = W x is divided by its input channels, y = W₁ x₁ + W₂ x₂, of which the first part is trained: the backward pass
needs x₁ alone, and gradient and optimizer state have the size of W₁. Or it gets an adapter, y = W x + U D x, where D
has a few filters, the rank, and U begins at zero. Both are plain layers, so every plan, precision and export has them,
and `merged` gives the network's own weights back. A BatchNorm after the layer follows each branch, too, with the same
scale; it stays frozen, but for its shift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np

from edgelearn.errors import PlanError, ShapeError
from edgelearn.ops import (
    Activation,
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Coupling,
    Dense,
    Dropout,
    Flatten,
    FrozenDense,
    GlobalAveragePooling2D,
    LinearOp,
    LogSoftmax,
    Op,
    Slice,
    SliceChannels,
    Softmax,
    SpatialDropout2D,
    Stream,
)
from edgelearn.ops.block_formats import decode, encode
from edgelearn.ops.merge import STEP
from edgelearn.ops.recurrent import Recurrent
from edgelearn.ops.shapes import positions
from edgelearn.ops.tensor import LINEAR, Function, Shape

from .network import INPUT, Network, Node

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
    - `name`: of the new layer (default "head"); with a number after it if a layer is called so.

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


@dataclass(frozen=True)
class Stage:
    """Consecutive layers that are computed together, each reading the one before.

    Arguments:
    - `nodes`: a linear op, a BatchNorm and an activation, each of them optional; a sum and an activation; or any other
      op alone. The activation is a gate only after a BatchNorm.
    """

    nodes: tuple[Node, ...]

    @property
    def op(self) -> Node | None:
        """The first layer, or None if the stage begins with a BatchNorm."""
        return None if isinstance(self.nodes[0].op, BatchNormalization) else self.nodes[0]

    @property
    def norm(self) -> Node | None:
        return next((node for node in self.nodes if isinstance(node.op, BatchNormalization)), None)

    @property
    def name(self) -> str:
        return self.nodes[0].name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.nodes[0].inputs

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def is_linear(self) -> bool:
        return isinstance(self.nodes[0].op, LinearOp)

    @property
    def activation(self) -> Function:
        """The fused activation, or LINEAR."""
        return self.gate if self.gate != LINEAR else self.mask

    @property
    def mask(self) -> Function:
        """The fused activation if whoever writes the output's gradient multiplies it by the derivative, which follows
        from the output; else LINEAR."""
        op = self.output.op
        return (op.epilogue if op.epilogue != LINEAR else op.filled) if len(self.nodes) > 1 else LINEAR

    @property
    def gate(self) -> Function:
        """The fused activation if the BatchNorm's backward pass multiplies by the derivative, which follows from what
        it recomputes; else LINEAR."""
        return self.output.op.gate if len(self.nodes) > 1 else LINEAR


def fuse(
    network: Network, sums: bool = False, epilogues: bool = True, joins: Callable[[Node, Node], bool] | None = None
) -> list[Stage]:
    """Divide the network into stages, in order. A layer joins the one before it if its op `fuses_after` that one, which
    has no other reader and is no output.

    Arguments:
    - `sums`: an activation joins a sum of two tensors, too (default False).
    - `epilogues`: layers join other layers (default True).
    - `joins`: says of a layer and one after it if they are joined, too (default: none are).
    """
    stages: list[Stage] = []
    fused: set[str] = set()
    outputs = network.outputs if network.nodes else ()
    for node in network.nodes.values():
        if node.name in fused:
            continue
        nodes = [node]
        while len(readers := network.consumers(nodes[-1].name)) == 1 and nodes[-1].name not in outputs:
            op = readers[0].op
            after_sum = sums and op.epilogue != LINEAR and _adds_two(network, nodes[-1])
            joined = joins is not None and joins(nodes[-1], readers[0])
            if not (after_sum or joined) and not (epilogues and op.fuses_after(nodes[-1].op)):
                break
            nodes += readers
        fused |= {node.name for node in nodes}
        stages.append(Stage(tuple(nodes)))
    return stages


def _adds_two(network: Network, node: Node) -> bool:
    shapes = network.input_shapes(node.inputs)
    return type(node.op) is Add and len(shapes) == 2 and shapes[0] == shapes[1]


def trained_stages(network: Network, stages: list[Stage], inputs: bool = False) -> set[str]:
    """Names of the stages that a gradient must reach: those with trained parameters, or with `inputs` those that read
    the network's inputs, and all that depend on them."""
    layers = {network.parameters[name].layer for name in network.trainable}
    trained: set[str] = set()
    alive = set(network.inputs) if inputs else set[str]()  # names of what has a gradient
    for stage in stages:
        if any(node.owner in layers for node in stage.nodes) or any(i in alive for i in stage.inputs):
            trained.add(stage.name)
            alive |= {node.name for node in stage.nodes}
    return trained


@dataclass(frozen=True)
class Split:
    """`prefix` computes the tensor `cut`, the input of `suffix`. Layers keep their names."""

    prefix: Network
    suffix: Network
    cut: str


def split_frozen(network: Network) -> Split | None:
    """Cut after the last frozen layer whose output is all that the layers above read; None if there is none.

    The prefix is deterministic: all its parameters are frozen, BatchNorm keeps its statistics, and no op is random.
    """
    stages = fuse(network)
    trained = trained_stages(network, stages)
    frozen: set[str] = set()
    cut = None
    for stage in stages:
        if stage.name in trained or any(node.op.random for node in stage.nodes):
            break
        frozen |= {node.name for node in stage.nodes}
        if _is_gate(network, stage.output.name, frozen):
            cut = stage.output.name, frozen.copy()
    if cut is None:
        return None
    name, below = cut
    prefix = _part(network, "prefix", network.inputs, [n for n in network.nodes.values() if n.name in below], {})
    prefix.outputs = name
    above = [n for n in network.nodes.values() if n.name not in below]
    if not above:
        return None
    suffix = _part(network, "suffix", {INPUT: network.shape_of(name)}, above, {name: INPUT})
    suffix.take_outputs(network)
    return Split(prefix, suffix, name)


def _is_gate(network: Network, name: str, below: set[str]) -> bool:
    """True if layers above read only `name` from `below`, and all outputs are above."""
    outside = [node for node in network.nodes.values() if node.name not in below]
    others = {*below, *network.inputs} - {name}
    shared = not below.isdisjoint(node.shares for node in outside)
    reads_others = not others.isdisjoint(i for node in outside for i in node.inputs)
    return not (shared or reads_others) and below.isdisjoint(network.outputs)


def _part(
    network: Network, suffix: str, inputs: Mapping[str, Shape], nodes: list[Node], renamed: dict[str, str]
) -> Network:
    part = Network(f"{network.name} {suffix}", inputs)
    for node in nodes:
        part.add_like(node, *(renamed.get(i, i) for i in node.inputs))
    part.trainable = network.trainable & set(part.parameters)
    return part


Arrays = Mapping[str, np.ndarray]
SHIFT = ("beta", "moving_mean")  # of a BatchNorm, 0 in that of a branch
UPDATE, REST, UP, DOWN, SUM, NORM = "_update", "_rest", "_up", "_down", "_sum", "_norm"  # end names of new layers


@dataclass(frozen=True)
class Branches:
    """Branches to add to a network.

    Arguments:
    - `channels`: by layer, the number of its first input channels whose weights are trained; below the layer's number.
    - `ranks`: by layer, the rank of an adapter.

    Layers are Dense or Conv2D without groups, in one kind of branch, and share no weights; a FrozenDense takes an
    adapter. `network` raises PlanError for others.
    """

    channels: Mapping[str, int]
    ranks: Mapping[str, int]

    def network(self, network: Network) -> Network:
        """Return a copy of `network` with the branches. These are trained, the layers' own kernels are frozen, and
        other parameters are trained if they are in `network`."""
        self._check(network)
        result, renamed = Network(network.name, network.inputs), dict[str, str]()
        ends = {_end(network, name): name for name in (*self.channels, *self.ranks)}
        for node in network.nodes.values():
            inputs = [renamed.get(name, name) for name in node.inputs]
            if node.name in self.channels:
                inputs = [result.add(f"{node.name}{REST}", _after(network, node, self.channels[node.name]), *inputs)]
            result.add_like(node, *inputs)
            if node.name in ends:
                layer = network.nodes[ends[node.name]]
                inputs = [renamed.get(name, name) for name in layer.inputs]
                renamed[node.name] = self._add(result, layer, node, inputs)
        kernels = {f"{name}/{role}" for name in (*self.channels, *self.ranks) for role in ("kernel", "rows")}
        branches = {name for name in result.parameters if name not in network.parameters}
        norms = {name for name in branches if f"{name.partition('/')[0]}".endswith(NORM)}
        result.trainable = (network.trainable - kernels) | (branches - norms)
        result.take_outputs(network, renamed)
        return result

    def _add(self, result: Network, layer: Node, end: Node, inputs: list[str]) -> str:
        """Add the branch of `layer`, which ends in `end`, its BatchNorm if it has one. Returns the sum's name."""
        op, name = layer.op, layer.name
        if isinstance(op, FrozenDense):
            op = Dense(op.units, use_bias=False)
        assert isinstance(op, Conv2D | Dense)
        if name in self.channels:
            x = result.add(f"{name}{UPDATE}_input", SliceChannels(0, self.channels[name]), *inputs)
            y = result.add(f"{name}{UPDATE}", replace(op, use_bias=False), x)
        else:
            rank = self.ranks[name]
            down = {"units": rank} if isinstance(op, Dense) else {"filters": rank}
            x = result.add(f"{name}{DOWN}", replace(op, use_bias=False, **down), *inputs)
            if isinstance(op, Dense):
                up: Conv2D | Dense = Dense(op.units, use_bias=False, kernel_initializer="zeros")
            else:
                up = Conv2D(op.filters, 1, use_bias=False, kernel_initializer="zeros")
            y = result.add(f"{name}{UP}", up, x)
        if end is not layer:
            y = result.add(f"{name}{NORM}", end.op, y)
        return result.add(f"{name}{SUM}", Add(), end.name, y)

    def _check(self, network: Network) -> None:
        if both := self.channels.keys() & self.ranks.keys():
            raise PlanError(f"'{min(both)}' can't have an adapter and a branch of channels: leave one of them out.")
        shared = {node.shares for node in network.nodes.values()}
        for name in (*self.channels, *self.ranks):
            node = network.nodes.get(name)
            takes = node and (takes_branch(node) or (name in self.ranks and isinstance(node.op, FrozenDense)))
            if not (node and takes) or node.shares or name in shared:
                known = ", ".join(n.name for n in network.nodes.values() if takes_branch(n))
                raise PlanError(f"'{name}' of '{network.name}' takes no branch. Layers that do: {known or 'none'}.")
            count = network.input_shapes(node.inputs)[0][-1]
            if name in self.channels and not 0 < self.channels[name] < count:
                raise PlanError(
                    f"Of the {count} input channels of '{name}', 1 to {count - 1} make a branch, not "
                    f"{self.channels[name]}: unfreeze '{name}/kernel' to train all."
                )
            if name in self.ranks and self.ranks[name] < 1:
                raise PlanError(f"The rank of an adapter is at least 1, not {self.ranks[name]} ('{name}').")

    def weights(self, network: Network, weights: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
        """Weights of `self.network(network)` from those of `network`, with which it computes the same. Adapters are
        drawn from `seed`."""
        result = self.network(network)
        drawn = result.initialize(seed, [name for name in result.parameters if name not in weights])
        found = drawn | {name: np.asarray(w) for name, w in weights.items()}
        for name, count in self.channels.items():
            kernel = found[f"{name}/kernel"]
            found[f"{name}{UPDATE}/kernel"] = np.ascontiguousarray(kernel[..., :count, :])
            found[f"{name}/kernel"] = np.ascontiguousarray(kernel[..., count:, :])
        for name in (*self.channels, *self.ranks):
            end = _end(network, name)
            if end != name:
                for role in ("gamma", "moving_variance", *SHIFT):
                    array = found[f"{end}/{role}"]
                    found[f"{name}{NORM}/{role}"] = np.zeros_like(array) if role in SHIFT else array.copy()
        return found

    def merged(self, network: Network, weights: Arrays) -> dict[str, np.ndarray]:
        """Weights of `network` from those of `self.network(network)`, branches and kernels as one. Sums with weights
        in blocks of few bits are rounded to these again."""
        found = {name: np.asarray(weights[name]) for name in network.parameters}
        for name in self.channels:
            parts = weights[f"{name}{UPDATE}/kernel"], weights[f"{name}/kernel"]
            found[f"{name}/kernel"] = np.concatenate(parts, -2)
        for name in self.ranks:
            down, up = (weights[f"{name}{end}/kernel"] for end in (DOWN, UP))
            change, op = down.astype(np.float64) @ up.reshape(up.shape[-2:]).astype(np.float64), network.nodes[name].op
            if isinstance(op, FrozenDense):
                found[f"{name}/rows"] = encode(decode(found[f"{name}/rows"], op.format) + change.T, op.format)
            else:
                found[f"{name}/kernel"] = (found[f"{name}/kernel"] + change).astype(np.float32)
        return found


def takes_branch(node: Node) -> bool:
    """True for a layer that can have a branch."""
    return isinstance(node.op, Dense) or (isinstance(node.op, Conv2D) and node.op.groups == 1)


def _after(network: Network, node: Node, count: int) -> SliceChannels:
    """The input channels from number `count` on."""
    return SliceChannels(count, network.input_shapes(node.inputs)[0][-1] - count)


def _end(network: Network, name: str) -> str:
    """The BatchNorm after a layer that nothing else reads, else the layer itself."""
    readers = network.consumers(name)
    norm = len(readers) == 1 and isinstance(readers[0].op, BatchNormalization) and name not in network.outputs
    return readers[0].name if norm else name
