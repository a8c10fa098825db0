"""A device in use: its OpenCL context and queues, buffers with accounting of their bytes, and pinned host memory."""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from edgelearn.device import Device
from edgelearn.display import Displayed, megabytes
from edgelearn.errors import DeviceError

from .driver import check_process, opencl_device

HUGE_PAGE = 2 << 20


class Ledger:
    """Count of device memory in bytes: `held` now, `peak` so far, and `limit`, what the device has."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.peak = 0

    def restart_peak(self) -> None:
        """Count the peak from what is held now."""
        self.peak = self.held

    def add(self, nbytes: int) -> None:
        self.held += nbytes
        self.peak = max(self.peak, self.held)


class DeviceBuffer:
    """A device buffer, freed by `release()` or when garbage-collected; `handle` is the cl.Buffer.

    Arguments:
    - `name`: used in error messages.
    - `on_host`: the device shares the host's memory (default False).

    Raises DeviceError if there is not enough memory.
    """

    def __init__(self, context: Any, ledger: Ledger, nbytes: int, name: str, on_host: bool = False) -> None:
        import pyopencl as cl

        self.nbytes, self.name, self._ledger, self.handle = nbytes, name, ledger, None
        if ledger.held + nbytes > ledger.limit:  # NVIDIA's driver would notice only when the buffer is used
            raise self._refusal(f"it has {megabytes(ledger.limit)}, of which {megabytes(ledger.held)} are in use")
        memory = _in_huge_pages(nbytes) if on_host and nbytes >= HUGE_PAGE else None
        flags = cl.mem_flags.READ_WRITE | (0 if memory is None else cl.mem_flags.USE_HOST_PTR)
        try:
            self.handle = cl.Buffer(context, flags, nbytes, memory)
        except cl.Error as error:
            raise self._refusal(str(error)) from None
        ledger.add(nbytes)

    def _refusal(self, why: str) -> DeviceError:
        return DeviceError(
            f"The device has no {megabytes(self.nbytes)} for '{self.name}' ({why}). "
            f"Use a smaller micro-batch, train fewer layers, or choose another device."
        )

    def release(self) -> None:
        if self.handle is not None:
            self.handle.release()
            self.handle = None
            self._ledger.add(-self.nbytes)

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            self.handle = None  # dropping the last reference releases it
            self._ledger.add(-self.nbytes)


def _in_huge_pages(nbytes: int) -> np.ndarray | None:
    """Host memory in huge pages of 2 MiB, on Linux: with 4 KiB pages, TLB misses take 3 % of a training step."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes // HUGE_PAGE * HUGE_PAGE)
    return memory[start : start + nbytes]


LEAST = 1 << 16  # bytes of an array that is worth it
LIMIT = 1 << 30  # bytes that a context holds at most
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Block:
    """A buffer in pinned memory, and its bytes as an array, which stay mapped."""

    buffer: Any
    words: np.ndarray


class PinnedArrays:
    """Makes arrays in pinned memory. What they took is used again once they and all their views are gone, until
    `release`.

    If the driver has no more pinned memory, arrays lie in ordinary memory from then on, which gives the same values at
    less speed; the log says so once.

    Arguments:
    - `cl_context`, `queue`: of the device that reads the arrays; the queue maps them, nothing else.
    - `limit`: bytes to hold at most (default 1 GiB); arrays beyond lie in ordinary memory, as do small ones.
    """

    def __init__(self, cl_context: Any, queue: Any, limit: int = LIMIT) -> None:
        self._context, self._queue, self._limit = cl_context, queue, limit
        self._lock = threading.Lock()
        self._free: list[_Block] = []
        self.nbytes = 0  # held

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        """An array as np.empty makes it. Any thread may call this."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        block = self._take(nbytes) if nbytes >= LEAST else None
        if block is None:
            return np.empty(shape, dtype)
        # An owner of its own, which views of it keep alive: `words` would outlive them all
        owner = (ctypes.c_ubyte * nbytes).from_address(block.words.ctypes.data)
        array = np.frombuffer(memoryview(owner), dtype)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def release(self) -> None:
        """Give the blocks that no array uses back to the driver. Any thread may call this."""
        with self._lock:
            self._free_until(0)

    def _take(self, nbytes: int) -> _Block | None:
        """The smallest free block that is large enough, or a new one; None if there is no room for it."""
        import pyopencl as cl

        with self._lock:
            fitting = [block for block in self._free if block.words.nbytes >= nbytes]
            if fitting:
                block = min(fitting, key=lambda block: block.words.nbytes)
                self._free.remove(block)
                return block
            self._free_until(self._limit - nbytes)  # those that are there are too small
            if self.nbytes + nbytes > self._limit:
                return None
            try:
                block = self._allocate(nbytes)
            except (cl.Error, MemoryError) as error:
                self._limit = self.nbytes  # asking again for each array would take time
                _log.warning(
                    f"The driver has no {megabytes(nbytes)} of pinned memory besides {megabytes(self.nbytes)} "
                    f"({error}). Examples lie in ordinary memory from now on: copies to the device take longer."
                )
                return None
            self.nbytes += nbytes
            return block

    def _free_until(self, most: int) -> None:
        """Drop free blocks until `most` bytes are held or none is free."""
        while self.nbytes > most and self._free:
            self.nbytes -= self._free.pop().words.nbytes

    def _allocate(self, nbytes: int) -> _Block:
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self._context, flags, nbytes)
        access: Any = cl.map_flags.READ | cl.map_flags.WRITE
        bytes_ = np.dtype(np.uint8)
        words, _ = cl.enqueue_map_buffer(self._queue, buffer, access, 0, (nbytes,), bytes_, is_blocking=True)
        return _Block(buffer, words)

    def _give_back(self, block: _Block) -> None:
        # The collector may call this at any time, also while this thread holds the lock: appending needs none
        self._free.append(block)


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
