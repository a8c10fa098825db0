"""A device in use: its OpenCL context, its in-order queue and its count of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .devices import Device
from .memory import DeviceBuffer, Ledger


class Context:
    """Everything that runs on one device shares one of these."""

    def __init__(self, device: Device) -> None:
        import pyopencl as cl

        self.device = device
        self.cl_context = cl.Context([device.handle])
        self.queue = cl.CommandQueue(self.cl_context)
        self.ledger = Ledger(device.memory)

    def allocate(self, nbytes: int, name: str) -> DeviceBuffer:
        """Uninitialized device memory, counted in `ledger`. Raises DeviceError when the device has none left."""
        return DeviceBuffer(self.cl_context, self.ledger, nbytes, name)

    def upload(self, array: np.ndarray, name: str) -> DeviceBuffer:
        """A copy on the device of a contiguous array, which `write` and `copy` take in place of it."""
        buffer = self.allocate(array.nbytes, name)
        self.write(buffer.handle, array)
        return buffer

    def write(self, target, source: np.ndarray | DeviceBuffer, offset: int = 0) -> None:
        """Copy a contiguous array into the cl.Buffer `target`, waiting for all that was enqueued before."""
        self.copy(target, source, offset).wait()

    def copy(self, target, source: np.ndarray | DeviceBuffer, offset: int = 0) -> Any:
        """Like `write`, but returns at once: an event that keeps an array alive, which must not be changed until the
        event has been waited for."""
        import pyopencl as cl

        if isinstance(source, DeviceBuffer):
            return cl.enqueue_copy(self.queue, target, source.handle, byte_count=source.nbytes, dst_offset=offset)
        return cl.enqueue_copy(self.queue, target, source, dst_offset=offset, is_blocking=False)

    def read(self, source, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Fill a contiguous array from the cl.Buffer `source`, waiting for all that was enqueued before."""
        import pyopencl as cl

        cl.enqueue_copy(self.queue, array, source, src_offset=offset, is_blocking=True)
        return array

    def fill_zero(self, target, nbytes: int, offset: int = 0) -> None:
        import pyopencl as cl

        cl.enqueue_fill_buffer(self.queue, target, np.uint32(0), offset, nbytes)

    def finish(self) -> None:
        self.queue.finish()
