"""Reuse distances of a launch's bytes: how many other bytes were touched since they were touched last.

A cache of a given size holds the data touched last, so data whose reuse distance (R. Mattson et al., "Evaluation
techniques for storage hierarchies", IBM Systems Journal 9, 1970) is below its size comes out of it. Distances are
counted in pages of the plan's memory, for programs that repeat, as those of a training run do. Left out: data
that a kernel reads more than once, and that a cache is divided into sets and between cores.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence

from edgelearn.launch import Access, Launch, Role

PAGE, MOST = 1 << 14, 1 << 14  # bytes of a page at least; pages that all launches touch together at most
Place = Callable[[Access], tuple[Role, int]]


def distances(launches: Sequence[Launch], place: Place) -> list[list[tuple[int, int]]]:
    """(bytes moved, reuse distance in bytes) of each launch, in the steady state of a loop over `launches`. `place`
    gives the memory that an access lies in, and its first byte."""
    page = PAGE
    while sum(launch.nbytes for launch in launches) > page * MOST:
        page *= 2
    recent = _Recent()
    moves: list[list[tuple[int, int]]] = []
    for turn in range(2):
        for launch in launches:
            moved: dict[int, int] = {}
            for access in launch.accesses:
                role, first = place(access)
                times = access.reads + access.writes
                for number in range(first // page, -(-(first + access.nbytes) // page)):
                    start, end = max(first, number * page), min(first + access.nbytes, (number + 1) * page)
                    distance = recent.touch((role, number)) * page
                    moved[distance] = moved.get(distance, 0) + times * (end - start)
            if turn:
                moves.append([(nbytes, distance) for distance, nbytes in moved.items()])
    return moves


class _Recent:
    """Pages by when they were touched last."""

    def __init__(self) -> None:
        self.now = 0
        self.last: dict[Hashable, int] = {}  # when each page was touched
        self.times: list[int] = []  # the same, ascending

    def touch(self, page: Hashable) -> int:
        """Number of pages touched since `page` was, itself included, or all of them; marks `page` as touched last."""
        count = len(self.times)
        if page in self.last:
            at = bisect_left(self.times, self.last[page])
            count -= at
            del self.times[at]
        self.now += 1
        self.last[page] = self.now
        self.times.append(self.now)
        return count
