"""Place temporaries in one arena so that buffers with disjoint lifetimes share memory.

Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference", section 4.2):
largest buffer first, each at the lowest offset that is free during its lifetime.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgelearn.launch import Buffer, Launch, Role


@dataclass(frozen=True)
class Lifetime:
    """A buffer is live from launch `first` to launch `last`, both included."""

    buffer: Buffer
    first: int
    last: int


def lifetimes(launches: Sequence[Launch], keep: Sequence[Buffer] = (), role: Role = Role.TEMPORARY) -> list[Lifetime]:
    """Lifetimes of all buffers of `role`; buffers in `keep` live until the last launch."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for index, launch in enumerate(launches):
        for access in launch.accesses:
            if access.buffer.role is role:
                first.setdefault(access.buffer, index)
                last[access.buffer] = index
    last.update({buffer: len(launches) - 1 for buffer in keep if buffer in first})
    return [Lifetime(buffer, first[buffer], last[buffer]) for buffer in first]


def alive(lives: Iterable[Lifetime], at: int) -> list[Buffer]:
    """Buffers that are live at launch `at`."""
    return [life.buffer for life in lives if life.first <= at <= life.last]


def place(lives: Sequence[Lifetime], alignment: int) -> tuple[dict[Buffer, int], int]:
    """Return (offset of each buffer, size of the arena), multiples of `alignment`."""
    placed: list[tuple[int, int, int, int, int]] = []  # (start, number, stop, first, last); numbers keep the order
    offsets: dict[Buffer, int] = {}
    for number, life in enumerate(sorted(lives, key=lambda life: (-life.buffer.nbytes, life.first))):
        size = -(-life.buffer.nbytes // alignment) * alignment
        start, first, last = 0, life.first, life.last
        for other_start, _, other_stop, other_first, other_last in placed:
            if other_first <= last and first <= other_last:
                if other_start - start >= size:
                    break
                if other_stop > start:  # half of the time that max() takes
                    start = other_stop
        offsets[life.buffer] = start
        insort(placed, (start, number, start + size, first, last))
    return offsets, max((stop for _, _, stop, _, _ in placed), default=0)
