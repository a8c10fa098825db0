"""Run lists of launches: arguments are bound once, then each launch takes a few microseconds to enqueue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from ctypes import CDLL, byref, c_size_t, c_uint, c_void_p
from functools import cache, partial
from typing import Any

import numpy as np

from edgelearn.launch import Await, Buffer, Launch, Many, Role, Transfer, scalar

from .context import Context
from .kernels import Kernels


def without_event(queue: Any, kernel: Any, grid: Sequence[int], local: Sequence[int]) -> Callable[[], int] | None:
    """Return a function that enqueues a kernel and returns OpenCL's error code, 0 if there is none; or None where
    PyOpenCL's library doesn't tell where OpenCL is (Windows).

    Arguments:
    - `queue`, `kernel`: a cl.CommandQueue, and a cl.Kernel whose arguments are set. The caller keeps both.
    - `grid`, `local`: work-items, and those of a work-group, in each dimension.
    """
    if (function := _function()) is None:
        return None
    sizes = [byref((c_size_t * len(size))(*size)) for size in (grid, local)]
    handles = c_void_p(queue.int_ptr), c_void_p(kernel.int_ptr)
    return partial(function, *handles, c_uint(len(grid)), None, *sizes, c_uint(0), None, None)


@cache
def _function() -> Any:
    """OpenCL's clEnqueueNDRangeKernel, looked for in PyOpenCL's own library and those that it needs."""
    from pyopencl import _cl

    try:
        return CDLL(_cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None


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


UNIT = 64  # bytes of a block: offsets reach kernels as numbers of blocks
Memory = Callable[[Buffer], tuple[Any, int]]
Step = Callable[[], Any]  # enqueues a launch; returns its event, or None if there is nothing to time


class Runner:
    """Launches bound to memory. `runs` counts how often the list was enqueued.

    Arguments:
    - `context`: the device in use.
    - `kernels`: its compiled programs.
    - `launches`: in order.
    - `memory`: `memory(buffer)` returns the cl.Buffer in which a planned buffer lies, or the array of bytes if it is
      paged, and its offset there in bytes (a multiple of 64).
    """

    def __init__(self, context: Context, kernels: Kernels, launches: Sequence[Launch], memory: Memory) -> None:
        self.context, self.launches = context, launches
        self.runs = 0
        self._kernels, self._memory, self._transfers = kernels, memory, TransferQueue(context)
        self._bound: list[tuple[Launch, Any]] = []  # kernels in use
        self._arguments: list[list[Any]] = []
        self._steps = [self._bind(launch) for launch in launches]

    def _bind(self, launch: Launch) -> Step:
        if isinstance(launch, Transfer):
            return self._bind_transfer(launch)
        if isinstance(launch, Await):
            return partial(self._transfers.wait, launch.buffer)
        return self._bind_kernel(launch)

    def _bind_transfer(self, launch: Transfer) -> Step:
        def place(buffer: Buffer) -> Any:
            memory, offset = self._memory(buffer)
            return memory[offset : offset + buffer.nbytes] if buffer.role is Role.PAGED else memory

        source, target = launch.source_buffer, launch.target_buffer
        here, page = (source, target) if target.role is Role.PAGED else (target, source)
        _, offset = self._memory(here)
        return partial(self._transfers.begin, here, page, place(target), place(source), offset)

    def _bind_kernel(self, launch: Launch) -> Step:
        import pyopencl as cl

        kernel = self._kernels.kernel(launch)
        self._bound.append((launch, kernel))
        values: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, int | float):
                values.append(scalar(argument))
            elif isinstance(argument, Many):
                handle, _ = self._memory(argument.accesses[0].buffer)
                values += [handle, np.uint32(0)]
            else:
                handle, offset = self._memory(argument.buffer)
                values += [handle, np.uint32(offset // UNIT)]
        kernel.set_args(*values)
        first = -(-launch.grid[0] // launch.group) * launch.group
        local = (launch.group,) + (1,) * (len(launch.grid) - 1)
        grid, queue = (first, *launch.grid[1:]), self.context.queue

        self._arguments.append(values)  # clSetKernelArg does not keep buffers alive
        with_event = partial(cl.enqueue_nd_range_kernel, queue, kernel, grid, local)
        enqueue = None if self.context.profiling else without_event(queue, kernel, grid, local)
        if enqueue is None:
            return with_event

        def step() -> None:
            if enqueue():
                with_event()  # raises the error by its name

        return step

    def close(self) -> None:
        """Give the kernels back. Everything enqueued must have finished."""
        for launch, kernel in self._bound:
            self._kernels.give_back(launch, kernel)
        self._bound, self._steps, self._arguments = [], [], []

    def enqueue(self) -> None:
        """Enqueue every launch in order, without waiting."""
        self.runs += 1
        profiling = self.context.profiling
        for launch, step in zip(self.launches, self._steps, strict=True):
            event = step()
            if profiling and event is not None:
                self.context.note(launch, event)

    def step_through(self, look: Callable[[Launch], bool]) -> Launch | None:
        """Run launch by launch, calling `look` after each; return the first launch for which it returns True."""
        for launch, step in zip(self.launches, self._steps, strict=True):
            step()
            self.context.finish()
            if look(launch):
                return launch
        return None
