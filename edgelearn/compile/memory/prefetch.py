"""When transfers begin and when they must have ended, so that they go on while launches compute: one at a time, so that
at most one tensor more is on the device than the launches use."""

from __future__ import annotations

from collections.abc import Iterable

from edgelearn.launch import Await, Launch, Transfer


def written_behind(forward: Iterable[Launch], turn: Launch | None = None) -> list[Launch]:
    """The launches of a forward pass, whose tensors are paged out when they are no longer used: each stays where it is
    until the next one is, or until the `turn` to the backward pass."""
    found: list[Launch] = []
    under_way: list[Launch] = []
    for launch in forward:
        if isinstance(launch, Transfer) or launch is turn:
            found += under_way
            under_way = []
        if isinstance(launch, Transfer):
            under_way = [Await.of(launch.source_buffer, launch.layer)]
        found.append(launch)
    return found + under_way


def prefetched(backward: Iterable[Launch]) -> list[Launch]:
    """The launches of a backward pass, whose tensors are paged in: each from when the one before is there."""
    found: list[Launch] = []
    begin = 0
    for launch in backward:
        if isinstance(launch, Transfer):
            found.insert(begin, launch)
            found.append(Await.of(launch.target_buffer, launch.layer))
            begin = len(found)
        else:
            found.append(launch)
    return found
