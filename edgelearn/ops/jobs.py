"""Jobs: one launch for many layers. Small pieces of work that run the same kernel and don't depend on each other become
work-items of one grid; a table on the device maps work-items to jobs (kernels/include/jobs.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from edgelearn.launch import Access, Buffer, Many

Row = tuple[Buffer | int, ...]


@dataclass(frozen=True)
class Job:
    """Work of one layer.

    Arguments:
    - `source`, `kernel`, `macros`: see `Emitter.launch`.
    - `items`: number of work-items.
    - `accesses`: buffers.
    - `numbers`: ints of this job, in the table.
    - `settings`: arguments of the launch; jobs with different settings need different launches.
    """

    source: str
    kernel: str
    items: int
    accesses: tuple[Access, ...]
    numbers: tuple[int, ...] = ()
    settings: tuple[int | float, ...] = ()
    whole: bool = False
    macros: tuple[tuple[str, int | str], ...] = ()
    layer: str = ""

    @property
    def kind(self) -> tuple:
        """Jobs of equal kind can share a launch, whose arguments are the memory of each role."""
        places = tuple((type(a), a.buffer.role) for a in self.accesses)
        return self.source, self.kernel, self.whole, self.macros, self.settings, places

    @cached_property
    def touches(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses}

    @cached_property
    def writes(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses if a.writes}


def batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs grouped by launch, in an order with the same result as one by one."""
    groups: list[list[Job]] = []
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
        groups += ready.values()
        jobs = waiting
    return groups


def arguments(batch: Sequence[Job]) -> list[Many]:
    """The buffer arguments of a batch, by position."""
    return [Many(accesses) for accesses in zip(*(job.accesses for job in batch), strict=True)]


def layer(batch: Sequence[Job]) -> str:
    """A name for the layers of a batch."""
    names = {job.layer for job in batch}
    return batch[0].layer if len(names) == 1 else f"{len(names)} layers"


def rows(batch: Sequence[Job]) -> tuple[Row, ...]:
    """The table of a batch: for each job its first work-item, its buffers and its numbers."""
    first = accumulate((job.items for job in batch[:-1]), initial=0)
    return tuple(
        (start, *(a.buffer for a in job.accesses), *job.numbers) for start, job in zip(first, batch, strict=True)
    )
