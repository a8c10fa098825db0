"""Host memory that stays in place: a GPU copies from it at the speed of the bus, without the driver's detour."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgelearn.units import megabytes

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
