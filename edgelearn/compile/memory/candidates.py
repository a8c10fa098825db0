"""Candidates of the planner: for each activation of a program that stores everything, the strategies that it can have,
what each costs and needs, and from when to when the tensor would be on the device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgelearn.compile.arena import alive, lifetimes
from edgelearn.compile.layout import make_storage
from edgelearn.compile.lower import lower
from edgelearn.compile.program import Kind, ProgramKey
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph.ancestors import ancestors
from edgelearn.graph.reversible import invertible_streams
from edgelearn.launch import Buffer, Launch, Role
from edgelearn.ops import Traits

from .activation_memory import ActivationMemory
from .launch_times import LaunchTimes
from .policies import cuts
from .prefetch import await_writes, prefetch
from .replay import replays
from .strategies import Encoding, Invert, Mask, Recompute, Store, Strategy


@dataclass(frozen=True)
class Option:
    """A strategy that a tensor can have.

    - `held`: bytes held on the device between the passes.
    - `seconds`: time that it adds to a step.
    - `at`: launch of the backward pass from which the whole tensor is on the device.
    - `needs`: tensors that it is restored from.
    - `streams`: tensors that these come from, which must not be recomputed, since that may need this one.
    """

    strategy: Strategy
    held: int
    seconds: float
    at: int
    needs: frozenset[Buffer] = frozenset()
    streams: frozenset[Buffer] = frozenset()


@dataclass(frozen=True)
class Activation:
    """A temporary of the forward pass that can be restored.

    - `names`: layers whose output it is, in order; none for tensors inside stages.
    - `values_read`, `is_read`: the backward pass reads its values; it reads them or their mask.
    - `entry`, `last`: launches of the backward pass from which it would be restored, and until which it is needed.
    - `options`: at least one.
    """

    buffer: Buffer
    names: tuple[str, ...]
    values_read: bool
    is_read: bool
    entry: int
    last: int
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """All that the planner chooses from.

    - `activations`: by buffer.
    - `stored`: bytes held between the passes besides these.
    - `live`: bytes on the device besides these at each launch of the backward pass.
    - `block_ends`: tensors between blocks. Where they are available, each block can be restored by itself.
    """

    activations: dict[Buffer, Activation]
    stored: int
    live: list[int]
    block_ends: list[Activation]

    def activation_memory(self, chosen: Mapping[Buffer, Option]) -> ActivationMemory:
        """Strategies by layer. Of layers that share a tensor the last one gets its strategy; tensors without one aren't
        needed."""
        memory: dict[str, Strategy] = {}
        for buffer, activation in self.activations.items():
            strategy = chosen[buffer].strategy if buffer in chosen else Recompute()
            if activation.names and not strategy.stores:
                memory |= dict.fromkeys(activation.names, Recompute()) | {activation.names[-1]: strategy}
        return memory


def find_candidates(
    request: Request, device: Device, traits: Traits, launch_times: LaunchTimes, allow: Sequence[Encoding] = ()
) -> Candidates:
    """The candidates of a training's first micro-batch: exact strategies on the device, and those in `allow`. Inverses
    that aren't exact are left out."""
    return _Finder(replace(request, activation_memory={}), device, traits, launch_times, (Mask(), *allow)).candidates()


class _Finder:
    def __init__(
        self, request: Request, device: Device, traits: Traits, times: LaunchTimes, encodings: Sequence[Encoding]
    ) -> None:
        key = ProgramKey(Kind.TRAIN, request.micro_batch)
        program, lowering = lower(request, make_storage(request, device), traits, key)
        remat = lowering.rematerialiser
        self.remat, self.forward, self.backward, self.loss_at = remat, remat.forward, remat.backward, remat.loss_at
        self.request, self.network, self.times, self.encodings = request, request.network, times, encodings
        self.inputs = {x.buffer for x in program.inputs.values()}
        self.tensors = {name: tensor.buffer for name, tensor in remat.tensors.items()}
        streams, self.inverted = invertible_streams(request.network)
        self.streams = {self.tensors[name] for name in streams if name in self.tensors}
        self.cuts = cuts(request.network)
        self.reads: dict[Buffer, list[int]] = {}  # launches of the backward pass
        for number, launch in enumerate(self.backward):
            for buffer in launch.reads:
                self.reads.setdefault(buffer, []).append(number)

    def candidates(self) -> Candidates:
        replayed = self._replays()
        needs = {b: _reads(launches or ()) & set(replayed) for b, launches in replayed.items()}
        activations = self._activations(list(replayed), needs)
        compared = {self.tensors[node.name] for node in self.network.nodes.values() if node.op.compares}
        only_recomputed = compared if any(not encoding.exact for encoding in self.encodings) else set()
        inverses = self._inverses(needs)
        sources = {b for inverse in inverses.values() for b in self._sources(inverse.needs, needs)}
        for b, activation in activations.items():
            launches, options = replayed[b], []
            if launches is not None:
                options.append(Option(Recompute(), 0, self._seconds(launches), activation.entry, needs[b]))
            if b not in only_recomputed:
                if activation.names or not options:
                    options.append(Option(Store(), b.nbytes, 0.0, 0))
                options += [inverses[b]] if b in inverses else []
                options += self._encodings(activation, b in sources)
            activations[b] = replace(activation, options=tuple(options))
        ends = {self.tensors[name] for cut in self.cuts for name in cut if name in self.tensors}
        return Candidates(activations, *self._besides(activations), [a for b, a in activations.items() if b in ends])

    def _replays(self) -> dict[Buffer, Sequence[Launch] | None]:
        """The launches that recompute each tensor; None for those that can't be, and that recomputing others reads."""
        inputs = {self.tensors.get(name) for name in self.network.inputs}
        named = set(self.tensors.values())
        found: dict[Buffer, Sequence[Launch] | None] = {
            buffer: replay.launches
            for buffer, replay in replays(self.forward, set(), {}, {}).items()
            if buffer not in inputs and (buffer in named or buffer not in self.reads)
        }
        read = {b for launches in found.values() for b in _reads(launches or ())} - set(found) - set(self.reads)
        written = [b for launch in self.forward for b in launch.writes if b.role is Role.TEMPORARY]
        return found | dict.fromkeys(b for b in written if b in read)

    def _activations(
        self, buffers: Sequence[Buffer], needs: Mapping[Buffer, frozenset[Buffer]]
    ) -> dict[Buffer, Activation]:
        """Without options."""
        names: dict[Buffer, list[str]] = {}
        for name in self.network.nodes:
            if name in self.tensors:
                names.setdefault(self.tensors[name], []).append(name)
        values = {buffer for launch in self.backward for buffer in launch.reads_values}
        entry = self._entries(buffers)
        last = {b: max(entry[b], *self.reads.get(b, [0])) for b in buffers}
        for b, sources in needs.items():
            for source in sources:
                last[source] = max(last[source], entry[b])
        return {
            b: Activation(b, tuple(names.get(b, ())), b in values, b in self.reads, entry[b], last[b]) for b in buffers
        }

    def _entries(self, buffers: Iterable[Buffer]) -> dict[Buffer, int]:
        """The launch at which the backward pass enters the block that each buffer is in, or is the input of."""
        writes = {b: number for number, launch in enumerate(self.forward) for b in launch.writes}
        borders = sorted(
            {max(writes[b] if (b := self.tensors.get(name)) in writes else -1 for name in cut) for cut in self.cuts}
        )
        blocks = {buffer: bisect_right(borders, writes[buffer]) for buffer in buffers}
        first = dict.fromkeys(blocks.values(), len(self.backward) - 1)
        for buffer, block in blocks.items():
            first[block] = min(first[block], *self.reads.get(buffer, [first[block]]))
        return {buffer: first[block] for buffer, block in blocks.items()}

    def _inverses(self, needs: Mapping[Buffer, frozenset[Buffer]]) -> dict[Buffer, Option]:
        """Exact inverses, by the tensors that they restore."""
        found = {}
        for name, layer in self.inverted.items():
            inverse = self.remat.inverses.get(layer)
            rounded = any(self.request.precision.format("activations", x) for x in (name, layer))
            if inverse and self.network.nodes[layer].op.inverts_exactly and not rounded:
                read = _reads(inverse.launches) & set(needs)
                seconds, streams = self._seconds(inverse.launches), self._sources(read, needs) & self.streams
                found[inverse.buffer] = Option(Invert(layer), 0, seconds, inverse.at, read, streams)
        return found

    def _encodings(self, activation: Activation, exact: bool) -> list[Option]:
        """The encodings that a tensor can have, only `exact` ones if streams come from it."""
        found = []
        for encoding in self.encodings if activation.names else ():
            if exact and not encoding.exact:
                continue
            if not encoding.restores_values and (activation.values_read or not activation.is_read):
                continue
            try:
                held, encode, decode = self.remat.encode(activation.buffer, encoding)
            except PlanError:
                continue
            nbytes = held.nbytes if held.role is Role.TEMPORARY else 0
            seconds = self._seconds([*await_writes(encode), *prefetch(decode)])
            found.append(Option(encoding, nbytes, seconds, activation.entry))
        return found

    def _sources(self, buffers: Iterable[Buffer], needs: Mapping[Buffer, frozenset[Buffer]]) -> frozenset[Buffer]:
        """The buffers and what they are recomputed from, as far as streams."""
        return frozenset(ancestors(buffers, lambda buffer: () if buffer in self.streams else needs[buffer]))

    def _seconds(self, launches: Iterable[Launch]) -> float:
        return sum(map(self.times.seconds, launches))

    def _besides(self, activations: Mapping[Buffer, Activation]) -> tuple[int, list[int]]:
        """Bytes besides the activations: held between the passes, and on the device at each launch of the backward
        pass."""
        lives = [life for life in lifetimes(self.forward + self.backward) if life.buffer not in activations]
        stored = sum(life.buffer.nbytes for life in lives if life.first < self.loss_at < life.last)
        stored += sum(x.nbytes for x in self.inputs if x in self.reads)
        indices = range(len(self.forward), len(self.forward) + len(self.backward))
        return stored, [sum(buffer.nbytes for buffer in alive(lives, index)) for index in indices]


def _reads(launches: Iterable[Launch]) -> frozenset[Buffer]:
    """Buffers that must be available for the launches to run."""
    launches = list(launches)
    written = {buffer for launch in launches for buffer in launch.writes}
    return frozenset(buffer for launch in launches for buffer in launch.reads if buffer not in written)
