"""When transfers begin and must have ended, so that they go on while launches compute: one at a time, so that at most
one tensor more is on the device than the launches use."""

from __future__ import annotations

from collections.abc import Iterable

from edgelearn.launch import Await, Launch, Transfer


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
