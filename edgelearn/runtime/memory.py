"""Device buffers, with accounting of their bytes."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from edgelearn.errors import DeviceError
from edgelearn.units import megabytes

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
