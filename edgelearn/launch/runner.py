"""Run lists of launches: arguments are bound once, then a list is a few microseconds of enqueueing a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgelearn.device import Context

from .buffers import Buffer
from .launch import Launch, Many, scalar
from .program import Kernels

UNIT = 64  # bytes of a block: offsets reach kernels as numbers of blocks
Memory = Callable[[Buffer], tuple[Any, int]]


class Runner:
    """Launches bound to memory. `memory(buffer)` gives the cl.Buffer in which a planned buffer lies, and its offset
    there in bytes (a multiple of 64). `runs` counts how often the list was enqueued."""

    def __init__(self, context: Context, kernels: Kernels, launches: Sequence[Launch], memory: Memory) -> None:
        self.context, self.launches = context, launches
        self.runs = 0
        self._bound = [self._bind(kernels, launch, memory) for launch in launches]

    @staticmethod
    def _bind(kernels: Kernels, launch: Launch, memory: Memory) -> tuple:
        kernel = kernels.kernel(launch)
        values: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, int | float):
                values.append(scalar(argument))
            elif isinstance(argument, Many):
                handle, _ = memory(argument.accesses[0].buffer)
                values += [handle, np.uint32(0)]
            else:
                handle, offset = memory(argument.buffer)
                values += [handle, np.uint32(offset // UNIT)]
        kernel.set_args(*values)
        first = -(-launch.grid[0] // launch.group) * launch.group
        local = (launch.group,) + (1,) * (len(launch.grid) - 1)
        return kernel, (first, *launch.grid[1:]), local, values  # clSetKernelArg does not keep buffers alive

    def enqueue(self) -> None:
        """Enqueue every launch in order, without waiting."""
        import pyopencl as cl

        self.runs += 1
        queue, profiling = self.context.queue, self.context.profiling
        for launch, (kernel, grid, local, _) in zip(self.launches, self._bound, strict=True):
            event = cl.enqueue_nd_range_kernel(queue, kernel, grid, local)
            if profiling:
                self.context.note(launch, event)

    def step_through(self, look: Callable[[Launch], bool]) -> Launch | None:
        """Run launch by launch, calling `look` after each; returns the first launch for which it says True."""
        import pyopencl as cl

        for launch, (kernel, grid, local, _) in zip(self.launches, self._bound, strict=True):
            cl.enqueue_nd_range_kernel(self.context.queue, kernel, grid, local)
            self.context.finish()
            if look(launch):
                return launch
        return None
