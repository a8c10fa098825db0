"""Rematerialisation: insert launches that restore activations the plan did not store.

A launch of the backward pass that reads a tensor that wasn't stored reads a copy, which other launches write right
before. A copy is a temporary like any other: its place and its lifetime follow from the launches.

Transfers to and from pages go on while launches compute, one at a time, so that at most one tensor more is on the
device than the launches use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgelearn.errors import PlanError
from edgelearn.graph.network import Network, Node
from edgelearn.launch import Await, Buffer, Launch, Role, Transfer
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.formats import Stored, tensor_of

from .memory import ActivationMemory, Encoding, Invert, MemoryStrategy, strategy_of


def await_writes(forward: Iterable[Launch], loss: Launch | None = None) -> list[Launch]:
    """A forward pass whose transfers are awaited: each before the next one begins, the last before the `loss`."""
    launches: list[Launch] = []
    under_way: list[Launch] = []
    for launch in forward:
        if isinstance(launch, Transfer) or launch is loss:
            launches += under_way
            under_way = []
        if isinstance(launch, Transfer):
            under_way = [Await.of(launch.source_buffer, launch.layer)]
        launches.append(launch)
    return launches + under_way


def prefetch(backward: Iterable[Launch]) -> list[Launch]:
    """A backward pass whose transfers begin early: each once the one before has ended."""
    launches: list[Launch] = []
    begin = 0
    for launch in backward:
        if isinstance(launch, Transfer):
            launches.insert(begin, launch)
            launches.append(Await.of(launch.target_buffer, launch.layer))
            begin = len(launches)
        else:
            launches.append(launch)
    return launches


TRANSIENT = 1 << 30  # depth of tensors inside stages


@dataclass(frozen=True)
class Replay:
    """How to restore a buffer.

    - `launches`: write it once more.
    - `depth`: copies of a greater depth, made on the way, are dropped once it is restored.
    """

    launches: tuple[Launch, ...]
    depth: int = TRANSIENT


def replays(
    forward: Sequence[Launch],
    stored: set[Buffer],
    depths: Mapping[Buffer, int],
    restoring: Mapping[Buffer, Sequence[Launch]],
) -> dict[Buffer, Replay]:
    """The replay of each buffer that `forward` writes and that isn't `stored`.

    Arguments:
    - `depths`: of the buffers that must have a replay.
    - `restoring`: launches that restore some of these; the others are written as in the forward pass.

    Buffers that can't be written twice, such as a batch's statistics, have none. Raises PlanError if one of those must.
    """
    written: dict[Buffer, list[Launch]] = {}
    once = set(stored)
    for launch in forward:
        # Other results of a launch, such as moving statistics, must not change twice.
        repeated = launch.replay or (launch,)  # once more, if that writes temporaries and nothing else
        repeatable = all(b.role is Role.TEMPORARY for b in _written(repeated))
        for buffer in launch.writes:
            again = [other for other in repeated if repeatable and buffer in other.writes]
            written.setdefault(buffer, []).extend(again)
            if not again:
                once.add(buffer)
    found = {
        buffer: Replay(tuple(launches), depths.get(buffer, TRANSIENT))
        for buffer, launches in written.items()
        if buffer not in once
    }
    found |= {buffer: Replay(tuple(launches), depths[buffer]) for buffer, launches in restoring.items()}
    for buffer in depths:
        if buffer not in found:
            raise PlanError(
                f"'{buffer.name}' can't be recomputed, since the kernel that writes it does more: store it."
            )
    return found


def rematerialise(
    backward: Sequence[Launch], replays: Mapping[Buffer, Replay], early: Mapping[int, Buffer]
) -> tuple[list[Launch], dict[Buffer, Buffer]]:
    """(the launches to run instead of `backward`, the original of each copy).

    A buffer with a replay is restored right before the launch that reads it; one that is `early` before the launch of
    that number. Raises PlanError for buffers that can only be restored from each other.
    """
    launches: list[Launch] = []
    current: dict[Buffer, Buffer] = {}  # copies by original
    originals: dict[Buffer, Buffer] = {}  # by copy

    def is_missing(buffer: Buffer) -> bool:
        return buffer in replays and buffer not in current

    def restore(buffer: Buffer) -> None:
        """Emit the launches that restore `buffer`, and those they depend on."""
        # A stack instead of recursion: a copy may depend on as many others as the network has layers.
        waiting: dict[Buffer, set[Buffer]] = {}  # each for the next; with the originals that had copies before
        while waiting or is_missing(buffer):
            if buffer not in waiting:
                waiting[buffer] = set(current)
            source = next(filter(is_missing, reads_of(replays[buffer].launches)), None)
            if source is None:
                write(buffer, waiting.pop(buffer))
                buffer = next(reversed(waiting), buffer)
            elif source in waiting:
                raise PlanError(_cycle([*waiting, source]))
            else:
                buffer = source

    def write(buffer: Buffer, before: set[Buffer]) -> None:
        replay = replays[buffer]
        new = {b: replace(b) for launch in replay.launches for b in launch.writes if b not in current}
        current.update(new)
        originals.update({copy: original for original, copy in new.items()})
        launches.extend(launch.on(current) for launch in replay.launches)
        # Copies of lower depth, such as outer checkpoints, stay for the blocks that follow.
        for other in set(current) - before:
            if replays.get(other, replay).depth > replay.depth:
                del current[other]

    for number, launch in enumerate(backward):
        for buffer in [*([early[number]] if number in early else []), *launch.reads]:
            restore(buffer)
        launches.append(launch.on(current))
    return launches, originals


def reads_of(launches: Iterable[Launch]) -> list[Buffer]:
    """Buffers that must be available for `launches` to run: those they read, except those they write themselves."""
    launches = list(launches)
    written = _written(launches)
    return [buffer for launch in launches for buffer in launch.reads if buffer not in written]


def _cycle(buffers: Sequence[Buffer]) -> str:
    names = [buffer.layer or buffer.name for buffer in buffers]
    needs = " and ".join(f"'{a}' needs '{b}'" for a, b in pairwise(names))
    return f"Recomputation cycle: {needs}. Store one of them: activation_memory={{'{names[0]}': Store()}}."


@dataclass(frozen=True)
class Inverse:
    """`launches` that restore `buffer`, and may run from launch number `at` of the backward pass on."""

    buffer: Buffer
    launches: list[Launch]
    at: int


@dataclass(frozen=True, eq=False)
class Rematerialisation:
    """The fate of a program's activations: stored, encoded or restored.

    - `loss_at`: index in `micro` of the first launch of the loss, where the forward pass ends.
    - `backward_at`: index in `micro` of the first launch of the backward pass.
    - `held`: buffers held instead of activations, and for what purpose.
    - `originals`: buffers of the forward pass by their copies in the backward pass.
    - `purposes`: of these copies: "recomputed", "inverted", "restored".
    """

    loss_at: int
    backward_at: int
    held: Mapping[Buffer, str]
    originals: Mapping[Buffer, Buffer]
    purposes: Mapping[Buffer, str]

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """Copies that were restored by inversion, by their originals."""
        return {x: copy for copy, x in self.originals.items() if self.purposes[copy] == Invert.purpose}


class Rematerialiser:
    """Rewrites the backward pass so that every activation it reads is available.

    Arguments:
    - `network`: the graph being lowered.
    - `activation_memory`: strategy per layer (`Store`, `Recompute`, `Invert`, `Offload`, `Compress`).
    - `micro`: collects the launches of one micro-batch.

    Also keeps the passes as they are if everything is stored, for the planner: `forward` (with the loss), `backward`,
    `tensors` (of the forward pass, by layer) and `inverses` (of every invertible layer, by its name). `end`: number of
    launches of both passes as rewritten.
    """

    def __init__(self, network: Network, activation_memory: ActivationMemory, micro: Emitter) -> None:
        self.network, self.activation_memory, self.micro = network, activation_memory, micro
        self.forward: list[Launch] = []
        self.backward: list[Launch] = []
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Buffer, list[str]] = {}
        self.inverses: dict[str, Inverse] = {}
        self.loss_at = self.end = 0

    def start(self, values: Mapping[str, Stored], loss: int) -> None:
        """Record the end of the forward pass. `values`: the output of each layer, by name. `loss`: index of the first
        launch of the loss."""
        self.loss_at = loss
        self.forward = list(self.micro.launches)
        self.tensors = {name: tensor_of(value) for name, value in values.items()}
        for name, tensor in self.tensors.items():
            self._names.setdefault(tensor.buffer, []).append(name)

    def invert(self, node: Node) -> None:
        """Record the launches that invert `node`, whose gradient the backward pass is about to compute."""
        start, tensors = len(self.micro.launches), [self.tensors[name] for name in (node.name, *node.inputs)]
        if node.inputs[0] in self.network.inputs or any(tensor.dtype != "float32" for tensor in tensors):
            return
        y, x, *others = tensors
        node.op.emit_inverse(self.micro, y, others, x)
        self.inverses[node.name] = Inverse(x.buffer, self._cut(start), start - len(self.forward))

    def finish(self) -> Rematerialisation:
        """Rewrite both passes. Raises PlanError for tensors that can't be restored as their strategies say."""
        self.backward = self._cut(len(self.forward))
        self.micro.launches[:], rematerialisation = self.rewritten(self.activation_memory)
        self.end = len(self.micro.launches)
        return rematerialisation

    def rewritten(self, activation_memory: ActivationMemory) -> tuple[list[Launch], Rematerialisation]:
        """Both passes with these strategies. Raises PlanError for tensors that can't be restored as they say."""
        strategies = self._strategies(activation_memory)
        encoded = {x: self.encode(x, s) for x, s in strategies.items() if isinstance(s, Encoding)}
        inverted = [x for layer, x in self.inverses.items() if strategies.get(x.buffer) == Invert(layer)]
        restoring = {x: decoding for x, (_, _, decoding) in encoded.items()} | {x.buffer: x.launches for x in inverted}
        stored = {b for launch in self.backward for b in launch.reads}.union(self._names) - set(strategies)
        depths = {x: strategy.depth for x, strategy in strategies.items()}
        backward, originals = rematerialise(
            self.backward,
            replays(self.forward, stored, depths, restoring),
            {inverse.at: inverse.buffer for inverse in inverted},
        )
        self._check_values(backward, originals, strategies)
        read = {buffer for launch in backward for buffer in launch.reads}
        # A tensor that the backward pass doesn't read need not be encoded.
        encoding = {x: launches for x, (_, launches, _) in encoded.items() if not read.isdisjoint(_written(launches))}
        loss = self.forward[self.loss_at]
        forward = await_writes(_after_last_uses(self.forward, encoding), loss)
        return forward + prefetch(backward), Rematerialisation(
            next(index for index, launch in enumerate(forward) if launch is loss),
            len(forward),
            {held: strategies[x].held_purpose for x, (held, _, _) in encoded.items()},
            originals,
            {copy: strategies[x].purpose if x in strategies else "recomputed" for copy, x in originals.items()},
        )

    def encode(self, buffer: Buffer, encoding: Encoding) -> tuple[Buffer, list[Launch], list[Launch]]:
        """(the buffer held instead of `buffer`, launches that write it, launches that restore `buffer`). Raises
        PlanError if that can't be."""
        names, nodes = self._names[buffer], self.network.nodes
        name = next((name for name in reversed(nodes) if name in names), names[-1])  # else the state after a step
        start, self.micro.layer = len(self.micro.launches), buffer.layer
        held = encoding.encode(self.micro, nodes[name if name in nodes else buffer.layer], self.tensors[name])
        encoding_launches = self._cut(start)
        encoding.decode(self.micro, held, self.tensors[name])
        return tensor_of(held).buffer, encoding_launches, self._cut(start)

    def _cut(self, start: int) -> list[Launch]:
        """Remove and return the launches emitted since `start`."""
        launches = self.micro.launches[start:]
        del self.micro.launches[start:]
        return launches

    def _strategies(self, activation_memory: ActivationMemory) -> dict[Buffer, MemoryStrategy]:
        """Strategies of the tensors that are not stored, by buffer."""
        strategies = {buffer: strategy_of(names, activation_memory) for buffer, names in self._names.items()}
        return {buffer: strategy for buffer, strategy in strategies.items() if not strategy.stores}

    def _check_values(
        self,
        backward: Iterable[Launch],
        originals: Mapping[Buffer, Buffer],
        strategies: Mapping[Buffer, MemoryStrategy],
    ) -> None:
        for launch in backward:
            for buffer in launch.reads_values:
                strategy = strategies.get(originals.get(buffer, buffer))
                if strategy and not strategy.restores_values:
                    raise PlanError(
                        f"'{buffer.layer}' can't have the strategy '{strategy}': {launch.kernel} of '{launch.layer}' "
                        f"needs its values in the backward pass. Store it, or choose another strategy."
                    )


def _written(launches: Iterable[Launch]) -> set[Buffer]:
    return {buffer for launch in launches for buffer in launch.writes}


def _after_last_uses(launches: Iterable[Launch], encoding: Mapping[Buffer, list[Launch]]) -> list[Launch]:
    """The launches, and after the last one that uses a buffer those that encode it."""
    launches = list(launches)
    last = {access.buffer: at for at, launch in enumerate(launches) for access in launch.accesses}
    after: dict[int, list[Launch]] = {}
    for buffer, extra in encoding.items():
        after.setdefault(last[buffer], []).extend(extra)
    return [run for at, launch in enumerate(launches) for run in (launch, *after.get(at, ()))]
