"""One launch for many layers: small pieces of work that do not depend on each other, and run the same kernel, become
work-items of one grid. A table in the device's memory says whose work-item it is (kernels/include/jobs.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from edgelearn.launch import Access, Buffer, Many

Row = tuple[Buffer | int, ...]


@dataclass(frozen=True)
class Job:
    """`items` work-items of a kernel on buffers of a layer. `numbers` are the layer's; `settings` are arguments of
    the launch, so jobs with other settings need another launch."""

    source: str
    kernel: str
    items: int
    accesses: tuple[Access, ...]
    numbers: tuple[int, ...] = ()
    settings: tuple[int | float, ...] = ()
    whole: bool = False
    macros: tuple[tuple[str, int], ...] = ()
    layer: str = ""

    @property
    def kind(self) -> tuple:
        """Jobs of one kind can share a launch: memory is an argument, and each role has its own."""
        places = tuple((type(a), a.buffer.role) for a in self.accesses)
        return self.source, self.kernel, self.whole, self.macros, self.settings, places

    @cached_property
    def touches(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses}

    @cached_property
    def writes(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses if a.writes}


def batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can share a launch, in an order that does what running them one by one would do."""
    found: list[list[Job]] = []
    while jobs:
        ready: dict[tuple, list[Job]] = {}
        waiting: list[Job] = []
        touched: set[Buffer] = set()
        written: set[Buffer] = set()
        for job in jobs:
            if written.isdisjoint(job.touches) and touched.isdisjoint(job.writes):
                ready.setdefault(job.kind, []).append(job)
            else:
                waiting.append(job)
            touched |= job.touches
            written |= job.writes
        found += ready.values()
        jobs = waiting
    return found


def arguments(batch: Sequence[Job]) -> list[Many]:
    """The accesses of a batch, by position."""
    return [Many(accesses) for accesses in zip(*(job.accesses for job in batch), strict=True)]


def layer(batch: Sequence[Job]) -> str:
    """What to call the layers of a batch."""
    names = {job.layer for job in batch}
    return batch[0].layer if len(names) == 1 else f"{len(names)} layers"


def rows(batch: Sequence[Job]) -> tuple[Row, ...]:
    """The table of a batch: of each job its first work-item, the buffers, the numbers."""
    first = accumulate((job.items for job in batch[:-1]), initial=0)
    return tuple(
        (start, *(a.buffer for a in job.accesses), *job.numbers) for start, job in zip(first, batch, strict=True)
    )
