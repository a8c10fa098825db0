"""Bringing back what wasn't kept: launches of the backward pass that read a lost tensor read a copy instead, which
other launches make right before. A copy is a temporary like any other: where it lies and how long it lives follows from
the launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Launch, Role

TRANSIENT = 1 << 30  # the level of what lies between named tensors


@dataclass(frozen=True)
class Replay:
    """The launches that make a buffer once more, and its level: whatever of a higher level had to be brought back on
    the way is forgotten once the buffer is there."""

    launches: tuple[Launch, ...]
    level: int = TRANSIENT


def replays(
    forward: Sequence[Launch],
    kept: set[Buffer],
    lost: Mapping[Buffer, int],
    given: Mapping[Buffer, Sequence[Launch]],
) -> dict[Buffer, Replay]:
    """How buffers that `forward` makes come back: the lost ones, which have levels, by the launches `given` for them
    where there are some; what is neither kept nor lost as it was made, unless nothing makes it twice, such as a batch's
    statistics. Raises PlanError for a lost buffer that can't be made twice."""
    made: dict[Buffer, list[Launch]] = {}
    once = set(kept)
    for launch in forward:
        for buffer in launch.writes:
            replay = [other for other in _repeatable(launch) if buffer in other.writes]
            made.setdefault(buffer, []).extend(replay)
            if not replay:
                once.add(buffer)
    found = {
        buffer: Replay(tuple(launches), lost.get(buffer, TRANSIENT))
        for buffer, launches in made.items()
        if buffer not in once
    }
    found |= {buffer: Replay(tuple(launches), lost[buffer]) for buffer, launches in given.items()}
    for buffer in lost:
        if buffer not in found:
            raise PlanError(f"'{buffer.name}' can't be made twice, since what makes it does more than that: keep it.")
    return found


def _repeatable(launch: Launch) -> tuple[Launch, ...]:
    """What makes a launch's temporaries once more and does nothing else; nothing if that can't be."""
    replay = launch.replay or (launch,)
    return replay if all(b.role is Role.TEMPORARY for other in replay for b in other.writes) else ()


def rematerialise(
    backward: Sequence[Launch], found: Mapping[Buffer, Replay], wanted: Mapping[int, Buffer]
) -> tuple[list[Launch], dict[Buffer, Buffer]]:
    """The launches that run instead of `backward`, which reads buffers with a return: a `wanted` one is brought back
    before the launch of that number, others right before they are read; and for each copy the buffer that it is of.
    Raises PlanError for circles."""
    copies = _Copies(found)
    for number, launch in enumerate(backward):
        if buffer := wanted.get(number):
            copies.bring_back(buffer)
        for buffer in launch.reads:
            copies.bring_back(buffer)
        copies.launches.append(launch.on(copies.there))
    return copies.launches, copies.originals


class _Copies:
    def __init__(self, replays: Mapping[Buffer, Replay]) -> None:
        self.replays = replays
        self.launches: list[Launch] = []
        self.there: dict[Buffer, Buffer] = {}
        self.originals: dict[Buffer, Buffer] = {}

    def bring_back(self, buffer: Buffer) -> None:
        """See that there is a copy of a buffer, if it has a return."""
        waiting: dict[Buffer, set[Buffer]] = {}  # each for the next one; with the copies that were there before it
        while waiting or self._is_missing(buffer):
            if buffer not in waiting:
                waiting[buffer] = set(self.there)
            first = next(filter(self._is_missing, self._reads(buffer)), None)
            if first is None:
                self._make(buffer, waiting.pop(buffer))
                buffer = next(reversed(waiting), buffer)
            elif first in waiting:
                names = "', '".join(b.name for b in waiting)
                raise PlanError(f"These would come back by one another: '{names}'. Keep one of them.")
            else:
                buffer = first

    def _is_missing(self, buffer: Buffer) -> bool:
        return buffer in self.replays and buffer not in self.there

    def _reads(self, buffer: Buffer) -> list[Buffer]:
        """What must be there to make a buffer."""
        launches = self.replays[buffer].launches
        made = {b for launch in launches for b in launch.writes}
        return [b for launch in launches for b in launch.reads if b not in made]

    def _make(self, buffer: Buffer, before: set[Buffer]) -> None:
        back = self.replays[buffer]
        new = {b: replace(b) for launch in back.launches for b in launch.writes if b not in self.there}
        self.there |= new
        self.originals |= {copy: b for b, copy in new.items()}
        self.launches += [launch.on(self.there) for launch in back.launches]
        for other in set(self.there) - before:
            if self.replays.get(other, back).level > back.level:
                del self.there[other]
