"""Copies between the device and host memory that proceed while kernels run."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from edgelearn.launch import Buffer

from .context import Context


class TransferQueue:
    """Runs `Transfer` and `Await` launches on a second queue.

    Before a page is copied back, the host waits until it has been copied out: drivers may read host memory when a copy
    is enqueued, before the events that it waits for (NVIDIA's does)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._events: dict[Buffer, Any] = {}
        self._written: dict[Buffer, Any] = {}  # by page
        self._done: deque[Any] = deque()  # kept until complete: freeing the event of a running copy blocks

    def begin(self, buffer: Buffer, page: Buffer, target: Any, source: Any, offset: int) -> Any:
        """Start a copy between a cl.Buffer, at byte `offset`, and an array. `buffer` is the one on the device, `page`
        the one outside."""
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
        """Make the context's queue, not the host, wait for the last copy of `buffer`."""
        import pyopencl as cl

        event = self._events.pop(buffer)
        cl.enqueue_barrier(self.context.queue, wait_for=[event])
        self._done.append(event)
        while self._done and self._done[0].command_execution_status == cl.command_execution_status.COMPLETE:
            self._done.popleft()
