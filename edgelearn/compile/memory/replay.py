"""Replay: launches of the backward pass that read a tensor that wasn't stored read a copy, which other launches write
right before. A copy is a temporary like any other: its place and its lifetime follow from the launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Launch, Role

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
        for buffer in launch.writes:
            again = [other for other in _repeatable(launch) if buffer in other.writes]
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


def _repeatable(launch: Launch) -> tuple[Launch, ...]:
    """Launches that write a launch's temporaries once more and nothing else; none if there are no such launches."""
    again = launch.replay or (launch,)
    return again if all(b.role is Role.TEMPORARY for other in again for b in other.writes) else ()


def rematerialise(
    backward: Sequence[Launch], replays: Mapping[Buffer, Replay], early: Mapping[int, Buffer]
) -> tuple[list[Launch], dict[Buffer, Buffer]]:
    """(the launches to run instead of `backward`, the original of each copy).

    A buffer with a replay is restored right before the launch that reads it; one that is `early` before the launch of
    that number. Raises PlanError for buffers that can only be restored from each other.
    """
    copies = _Copies(replays)
    for number, launch in enumerate(backward):
        if buffer := early.get(number):
            copies.restore(buffer)
        for buffer in launch.reads:
            copies.restore(buffer)
        copies.launches.append(launch.on(copies.current))
    return copies.launches, copies.originals


class _Copies:
    def __init__(self, replays: Mapping[Buffer, Replay]) -> None:
        self.replays = replays
        self.launches: list[Launch] = []
        self.current: dict[Buffer, Buffer] = {}  # by original
        self.originals: dict[Buffer, Buffer] = {}  # by copy

    def restore(self, buffer: Buffer) -> None:
        """Emit the launches that restore `buffer`, and those they depend on."""
        waiting: dict[Buffer, set[Buffer]] = {}  # each for the next; with the originals that had copies before
        while waiting or self._is_missing(buffer):
            if buffer not in waiting:
                waiting[buffer] = set(self.current)
            source = next(filter(self._is_missing, self._reads(buffer)), None)
            if source is None:
                self._write(buffer, waiting.pop(buffer))
                buffer = next(reversed(waiting), buffer)
            elif source in waiting:
                raise PlanError(_cycle([*waiting, source]))
            else:
                buffer = source

    def _is_missing(self, buffer: Buffer) -> bool:
        return buffer in self.replays and buffer not in self.current

    def _reads(self, buffer: Buffer) -> list[Buffer]:
        """Buffers read by the launches that restore `buffer`, except those they write themselves."""
        launches = self.replays[buffer].launches
        written = {b for launch in launches for b in launch.writes}
        return [b for launch in launches for b in launch.reads if b not in written]

    def _write(self, buffer: Buffer, before: set[Buffer]) -> None:
        replay = self.replays[buffer]
        new = {b: replace(b) for launch in replay.launches for b in launch.writes if b not in self.current}
        self.current |= new
        self.originals |= {copy: original for original, copy in new.items()}
        self.launches += [launch.on(self.current) for launch in replay.launches]
        for other in set(self.current) - before:
            if self.replays.get(other, replay).depth > replay.depth:
                del self.current[other]


def _cycle(buffers: Sequence[Buffer]) -> str:
    names = [buffer.layer or buffer.name for buffer in buffers]
    needs = " and ".join(f"'{a}' needs '{b}'" for a, b in pairwise(names))
    return f"Recomputation cycle: {needs}. Store one of them: activation_memory={{'{names[0]}': Store()}}."
