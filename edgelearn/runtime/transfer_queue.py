"""Copies between the device and host memory that proceed while kernels run."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from edgelearn.launch import Buffer

from .context import Context


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
