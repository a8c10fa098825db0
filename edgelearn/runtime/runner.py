"""Run lists of launches: arguments are bound once, then each launch takes a few microseconds to enqueue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from edgelearn.launch.buffers import Buffer, Role
from edgelearn.launch.launch import Launch, Many, scalar
from edgelearn.launch.transfer import Await, Transfer

from .context import Context
from .enqueue import without_event
from .kernels import Kernels
from .transfer_queue import TransferQueue

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
