"""Place temporaries in one arena so that buffers with disjoint lifetimes share memory.

Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference", section 4.2):
largest buffer first, each at the lowest offset that is free during its lifetime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgelearn.launch import Buffer, Launch, Role


@dataclass(frozen=True)
class Lifetime:
    """A buffer is live from launch `first` to launch `last`, both included."""

    buffer: Buffer
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


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
    placed: list[tuple[int, int, Lifetime]] = []  # (start, stop, lifetime), sorted by start
    offsets: dict[Buffer, int] = {}
    for life in sorted(lives, key=lambda life: (-life.buffer.nbytes, life.first)):
        size = -(-life.buffer.nbytes // alignment) * alignment
        start = 0
        for other_start, other_stop, other in placed:
            if other.overlaps(life):
                if other_start - start >= size:
                    break
                start = max(start, other_stop)
        offsets[life.buffer] = start
        placed.append((start, start + size, life))
        placed.sort(key=lambda entry: entry[0])
    return offsets, max((stop for _, stop, _ in placed), default=0)
