"""What there is to choose for each activation (see graph/options.py), taken from the launches of a plan that keeps
everything: what each way costs, what it needs, and from when to when the tensor would be there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from edgelearn.compile.arena import alive, lifetimes
from edgelearn.compile.layout import lay_out
from edgelearn.compile.plan import Plan
from edgelearn.compile.program import Kind
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph.ancestors import ancestors
from edgelearn.graph.network import INPUT
from edgelearn.graph.reversible import invertible_streams
from edgelearn.launch import Buffer, Launch, Role
from edgelearn.ops import Traits

from .candidates import Candidates, Item, Option
from .launch_times import LaunchTimes
from .policies import cuts
from .prefetch import prefetched, written_behind
from .replay import replays
from .strategies import Encoding, Invert, Mask, Recompute


def choices(
    request: Request, device: Device, traits: Traits, costs: LaunchTimes, allow: Sequence[Encoding] = ()
) -> Candidates:
    """Of the first micro-batch of a training. Exact ways are always among the options, `also` others; inverses that are
    not quite exact never are."""
    plan = lay_out(replace(request, activation_memory={}), device, traits)
    return _Finder(plan, costs, (Mask(), *allow)).found()


class _Finder:
    def __init__(self, plan: Plan, costs: LaunchTimes, stashes: Sequence[Encoding]) -> None:
        request = plan.request
        program = plan.program(Kind.TRAIN)
        self.x, ways = program.x.buffer, program.rematerialiser
        self.ways, self.forward, self.backward = ways, ways.forward, ways.backward
        self.network, self.costs, self.stashes = request.network, costs, stashes
        self.rounded = partial(request.precision.format, "activations")
        self.tensors = {name: tensor.buffer for name, tensor in ways.tensors.items()}
        streams, self.inverted = invertible_streams(request.network)
        self.streams = {self.tensors[name] for name in streams if name in self.tensors}
        self.reads: dict[Buffer, list[int]] = {}  # launches of the backward pass
        for number, launch in enumerate(self.backward):
            for buffer in launch.reads:
                self.reads.setdefault(buffer, []).append(number)
        self.values = {buffer for launch in self.backward for buffer in launch.reads_values}

    def found(self) -> Candidates:
        names: dict[Buffer, list[str]] = {}
        for name in (INPUT, *self.network.nodes):
            if name in self.tensors:
                names.setdefault(self.tensors[name], []).append(name)
        made = replays(self.forward, set(), {}, {})
        made = {
            buffer: back.launches
            for buffer, back in made.items()
            if INPUT not in names.get(buffer, ()) and (buffer in names or buffer not in self.reads)
        }
        made |= dict.fromkeys(self._made_once(made))
        needs = {buffer: _read(launches or ()) & set(made) for buffer, launches in made.items()}
        entry = self._entries(made)
        last = {buffer: max(entry[buffer], *self.reads.get(buffer, [0])) for buffer in made}
        for buffer, found in needs.items():
            for other in found:
                last[other] = max(last[other], entry[buffer])
        items = {
            b: Item(b, tuple(names.get(b, ())), b in self.values, b in self.reads, entry[b], last[b]) for b in made
        }
        alone = self._compared() if any(way.lossy for way in self.stashes) else set()
        inverses = self._inverses(needs)
        exact = {b for inverse in inverses.values() for b in self._made_of(inverse.needs, needs)}
        for b, item in items.items():
            ways = [self._recomputation(item, made[b], needs[b])] if made[b] is not None else []
            if b not in alone:
                ways += [Option(None, b.nbytes, 0.0, 0)] if item.names or not ways else []
                ways += [inverses[b]] if b in inverses else []
                ways += self._stashed(item, b in exact)
            items[b] = replace(item, options=tuple(ways))
        ends = {self.tensors[name] for cut in cuts(self.network) for name in cut if name in self.tensors}
        return Candidates(items, *self._there(items), [item for b, item in items.items() if b in ends])

    def _made_once(self, made: Mapping[Buffer, Sequence[Launch]]) -> list[Buffer]:
        """What can't be made twice, and is read only to make other things once more."""
        written = [b for launch in self.forward for b in launch.writes if b.role is Role.TEMPORARY]
        read = {buffer for launches in made.values() for buffer in _read(launches)} - set(made) - set(self.reads)
        return [buffer for buffer in written if buffer in read]

    def _compared(self) -> set[Buffer]:
        """What is looked for among the values that it is made of: where those come back only nearly as they were, it
        has to be made of them again."""
        return {self.tensors[node.name] for node in self.network.nodes.values() if node.op.compares}

    def _seconds(self, launches: Iterable[Launch]) -> float:
        return sum(map(self.costs.seconds, launches))

    def _entries(self, made: Iterable[Buffer]) -> dict[Buffer, int]:
        """When the backward pass enters the block that each buffer is in, or that it is the input of."""
        writes = {b: number for number, launch in enumerate(self.forward) for b in launch.writes}
        borders = sorted({max(writes.get(self.tensors.get(name), -1) for name in cut) for cut in cuts(self.network)})
        blocks = {buffer: bisect_right(borders, writes[buffer]) for buffer in made}
        first = dict.fromkeys(blocks.values(), len(self.backward) - 1)
        for buffer, block in blocks.items():
            first[block] = min(first[block], *self.reads.get(buffer, [first[block]]))
        return {buffer: first[block] for buffer, block in blocks.items()}

    def _recomputation(self, item: Item, launches: Sequence[Launch], needs: frozenset[Buffer]) -> Option:
        return Option(Recompute(), 0, self._seconds(launches), item.entry, needs)

    def _inverses(self, needs: Mapping[Buffer, frozenset[Buffer]]) -> dict[Buffer, Option]:
        """Exact ones."""
        found = {}
        for name, layer in self.inverted.items():
            inverse = self.ways.inverses.get(layer)
            exact = self.network.nodes[layer].op.inverts_exactly and not (self.rounded(name) or self.rounded(layer))
            if inverse and exact:
                read = _read(inverse.launches) & set(needs)
                seconds, streams = self._seconds(inverse.launches), self._made_of(read, needs) & self.streams
                found[inverse.buffer] = Option(Invert(layer), 0, seconds, inverse.at, read, streams)
        return found

    def _stashed(self, item: Item, exact: bool) -> list[Option]:
        """Ways that keep something else, where they can be had; `exact` ones if streams are made of the item."""
        found = []
        for way in self.stashes if item.names else ():
            if (exact and way.lossy) or (way.masks and (item.reads or not item.mask)):
                continue
            try:
                held, put, get = self.ways.stash(item.buffer, way)
            except PlanError:  # of another type, or no rectifier's output
                continue
            stored = held.nbytes if held.role is Role.TEMPORARY else 0
            found.append(Option(way, stored, self._seconds([*written_behind(put), *prefetched(get)]), item.entry))
        return found

    def _made_of(self, buffers: Iterable[Buffer], needs: Mapping[Buffer, frozenset[Buffer]]) -> frozenset[Buffer]:
        """These and what they are made of, not going through streams."""
        return frozenset(ancestors(buffers, lambda buffer: () if buffer in self.streams else needs[buffer]))

    def _there(self, items: Mapping[Buffer, Item]) -> tuple[int, list[int]]:
        """Bytes that are stored besides items, and that live at each launch of the backward pass besides them."""
        lives = [life for life in lifetimes(self.forward + self.backward) if life.buffer not in items]
        turn = self.ways.turn
        stored = sum(life.buffer.nbytes for life in lives if life.first < turn < life.last)
        stored += self.x.nbytes * (self.x in self.reads)
        places = range(len(self.forward), len(self.forward) + len(self.backward))
        return stored, [sum(buffer.nbytes for buffer in alive(lives, place)) for place in places]


def _read(launches: Iterable[Launch]) -> frozenset[Buffer]:
    """What must be there for launches to run."""
    launches = list(launches)
    made = {buffer for launch in launches for buffer in launch.writes}
    return frozenset(buffer for launch in launches for buffer in launch.reads if buffer not in made)
