"""Reuse distances of a launch's bytes: how many other bytes were touched since they were touched last.

A cache of a given size holds the data touched last, so data whose reuse distance (R. Mattson et al., "Evaluation
techniques for storage hierarchies", IBM Systems Journal 9, 1970) is below its size comes out of it. Distances are
counted in pages of the plan's memory, for programs that repeat, as those of a training run do. Left out: data
that a kernel reads more than once, and that a cache is divided into sets and between cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgelearn.launch import Access, Launch, Role

PAGE, MOST = 1 << 14, 1 << 14  # bytes of a page at least; pages that all launches touch together at most
Place = Callable[[Access], tuple[Role, int]]


def distances(launches: Sequence[Launch], place: Place) -> list[list[tuple[int, int]]]:
    """(bytes moved, reuse distance in bytes) of each launch, in the steady state of a loop over `launches`. `place`
    gives the memory that an access lies in, and its first byte."""
    page = PAGE
    while sum(launch.nbytes for launch in launches) > page * MOST:
        page *= 2
    recent: dict[tuple[Role, int], None] = {}  # pages, the one touched last at the end
    moves: list[list[tuple[int, int]]] = []
    for turn in range(2):
        for launch in launches:
            moved: dict[int, int] = {}
            for access in launch.accesses:
                role, first = place(access)
                times = access.reads + access.writes
                for number in range(first // page, -(-(first + access.nbytes) // page)):
                    start, end = max(first, number * page), min(first + access.nbytes, (number + 1) * page)
                    distance = _distance(recent, (role, number)) * page
                    moved[distance] = moved.get(distance, 0) + times * (end - start)
            if turn:
                moves.append([(nbytes, distance) for distance, nbytes in moved.items()])
    return moves


def _distance(recent: dict, page: tuple[Role, int]) -> int:
    """Number of pages touched since `page` was, itself included; marks `page` as touched last."""
    count = len(recent)
    if page in recent:
        count = next(n for n, other in enumerate(reversed(recent), 1) if other == page)
        del recent[page]
    recent[page] = None
    return count
