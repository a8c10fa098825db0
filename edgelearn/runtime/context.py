"""A device in use: its OpenCL context, in-order queue and memory accounting."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from edgelearn.device import Device
from edgelearn.display import Displayed

from .handles import opencl_device
from .memory import DeviceBuffer, Ledger
from .pinned import PinnedArrays
from .process import check_process

_open: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()  # by the device's index


def open_context(device: Device) -> Any:
    """The cl.Context of the device, a new one if nothing uses it: programs in one context can be shared."""
    import pyopencl as cl

    found = _open.get(device.index)
    if found is None:
        _open[device.index] = found = cl.Context([opencl_device(device)])
    return found


class Context(Displayed):
    """Queues and memory of one device; everything that runs on it shares one.

    The OpenCL context opens when it is first used: where one model takes the place of another under the same name, the
    other one's is gone by then. PoCL keeps some kilobytes of each program until no context is open.

    Arguments:
    - `device`: the device.
    - `profiling`: read the device's clock at the start and the end of each launch, for `take_times` (default False).

    Raises DeviceError in a fork of a process that uses a device, now and when the context is used there.
    """

    def __init__(self, device: Device, profiling: bool = False) -> None:
        import pyopencl as cl

        check_process()
        self.device, self.profiling = device, profiling
        self._properties: Any = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        self._transfers: Any = None
        self._events: list[tuple[Any, Any]] = []
        self.ledger = Ledger(device.memory)

    @property
    def headline(self) -> str:
        return f"of {self.device.id}"

    @cached_property
    def cl_context(self) -> Any:
        return open_context(self.device)

    @cached_property
    def queue(self) -> Any:
        """The in-order queue of launches and copies."""
        return self._new_queue()

    @property
    def transfers(self) -> Any:
        """A second in-order queue, for copies concurrent with `queue`."""
        if self._transfers is None:
            self._transfers = self._new_queue()
        return self._transfers

    @cached_property
    def pinned(self) -> PinnedArrays:
        """Arrays in pinned memory, which this device copies from fast."""
        return PinnedArrays(self.cl_context, self._new_queue())

    def _new_queue(self) -> Any:
        import pyopencl as cl

        return cl.CommandQueue(self.cl_context, properties=self._properties)

    def allocate(self, nbytes: int, name: str) -> DeviceBuffer:
        """Allocate uninitialized device memory, counted in `ledger`. Raises DeviceError if there is not enough."""
        check_process()
        return DeviceBuffer(self.cl_context, self.ledger, nbytes, name, self.device.kind == "cpu")

    def write(self, target, array: np.ndarray, offset: int = 0) -> None:
        """Copy a contiguous array into the cl.Buffer `target` at byte `offset`, after all work enqueued before."""
        self.copy(target, array, offset).wait()

    def copy(self, target, array: np.ndarray, offset: int = 0) -> Any:
        """Like `write`, without waiting. The returned event keeps the array alive; wait for it before changing the
        array."""
        import pyopencl as cl

        check_process()
        return cl.enqueue_copy(self.queue, target, array, dst_offset=offset, is_blocking=False)

    def read(self, source, array: np.ndarray, offset: int = 0, wait: bool = True) -> np.ndarray:
        """Fill a contiguous array from the cl.Buffer `source` at byte `offset`, after all work enqueued before. Without
        `wait` it is filled once a later `read` or `finish` returns."""
        import pyopencl as cl

        check_process()
        cl.enqueue_copy(self.queue, array, source, src_offset=offset, is_blocking=wait)
        return array

    def fill_zero(self, target, nbytes: int, offset: int = 0) -> None:
        import pyopencl as cl

        check_process()
        cl.enqueue_fill_buffer(self.queue, target, np.zeros(1, np.uint32), offset, nbytes)

    def finish(self) -> None:
        check_process()
        self.queue.finish()
        if self._transfers is not None:
            self._transfers.finish()

    def note(self, launch: Any, event: Any) -> None:
        """Record the event of a launch for `take_times`."""
        self._events.append((launch, event))

    def take_times(self) -> list[tuple[Any, int, int]]:
        """Wait, and return (launch, start, end) of every launch since the last call, in nanoseconds of the device's
        clock. Empty without profiling."""
        self.finish()
        events, self._events = self._events, []
        return [(launch, event.profile.start, event.profile.end) for launch, event in events]
