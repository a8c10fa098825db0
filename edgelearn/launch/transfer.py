"""Copies between the device and pages outside it, which go on while launches compute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from edgelearn.device import Context, Device, Pages

from .buffers import Buffer
from .launch import In, Launch, Out

PROBE, TIMES = 1 << 20, 9  # bytes copied out and in to see how long it takes, and how often


@dataclass(frozen=True)
class Transfer(Launch):
    """Copies a whole buffer. One of the two is on the device, the other in pages (Role.PAGED). It begins once launches
    before it are done; an Await says when it must have ended."""

    @classmethod
    def of(cls, source: Buffer, target: Buffer, layer: str) -> Transfer:
        return cls("", "transfer", (), (1,), 1, (In(source), Out(target)), layer)

    @property
    def moved(self) -> int:
        """Bytes."""
        return self.source_buffer.nbytes

    @property
    def source_buffer(self) -> Buffer:
        return self.accesses[0].buffer

    @property
    def target_buffer(self) -> Buffer:
        return self.accesses[1].buffer


@dataclass(frozen=True)
class Await(Launch):
    """Launches behind it begin once the last Transfer from or to `buffer`, on the device, has ended."""

    @classmethod
    def of(cls, buffer: Buffer, layer: str) -> Await:
        return cls("", "await", (), (1,), 1, (In(buffer, 0),), layer)

    @property
    def buffer(self) -> Buffer:
        return self.accesses[0].buffer


class TransferQueue:
    """Carries out the transfers and awaits of a list of launches, on a queue beside the context's.

    Before a page is copied in, the host waits until it has been copied out: drivers may read the host's memory as soon
    as a copy is enqueued, whatever it has to wait for (NVIDIA's does)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._events: dict[Buffer, Any] = {}
        self._written: dict[Buffer, Any] = {}  # by page
        self._done: deque[Any] = deque()  # freeing the event of a copy would wait for it

    def begin(self, buffer: Buffer, page: Buffer, target: Any, source: Any, offset: int) -> Any:
        """Copy between a cl.Buffer, from `offset` on, and an array; `buffer` is the one on the device, `page` the
        other."""
        import pyopencl as cl

        outward = isinstance(target, np.ndarray)
        if not outward and page in self._written:
            self._written.pop(page).wait()
        before = cl.enqueue_marker(self.context.queue)
        self.context.queue.flush()
        place = {"src_offset": offset} if outward else {"dst_offset": offset}
        queue = self.context.transfers
        event = cl.enqueue_copy(queue, target, source, wait_for=[before], is_blocking=False, **place)
        queue.flush()
        self._events[buffer] = event
        if outward:
            self._written[page] = event
        return event

    def wait(self, buffer: Buffer) -> None:
        """Have the context's queue wait; the host goes on."""
        import pyopencl as cl

        event = self._events.pop(buffer)
        cl.enqueue_barrier(self.context.queue, wait_for=[event])
        self._done.append(event)
        while self._done and self._done[0].command_execution_status == cl.command_execution_status.COMPLETE:
            self._done.popleft()


def bytes_per_second(device: Device, folder: str | None = None) -> float:
    """Between the device and pages in the host's memory or in a file in `folder`: the median of a few copies out and
    in again. Raises PagingError."""
    context, pages = Context(device), Pages(PROBE, folder)
    memory = context.allocate(PROBE, "probe")
    seconds = []
    for _ in range(TIMES):
        start = perf_counter()
        context.read(memory.handle, pages.words)
        context.write(memory.handle, pages.words)
        seconds.append(perf_counter() - start)
    memory.release()
    return 2 * PROBE / float(np.median(seconds))
