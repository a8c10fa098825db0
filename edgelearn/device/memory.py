"""Device buffers that count their bytes."""

from __future__ import annotations

from typing import Any

from edgelearn.errors import DeviceError


class Ledger:
    """Bytes of device memory held now and at most, counted by the buffers themselves, of `limit` there are."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.peak = 0

    def add(self, nbytes: int) -> None:
        self.held += nbytes
        self.peak = max(self.peak, self.held)


class DeviceBuffer:
    """`nbytes` of device memory; `handle` is the cl.Buffer. Released by `release()` or when dropped."""

    def __init__(self, context: Any, ledger: Ledger, nbytes: int, name: str) -> None:
        import pyopencl as cl

        self.nbytes, self.name, self._ledger, self.handle = nbytes, name, ledger, None
        if ledger.held + nbytes > ledger.limit:  # NVIDIA's driver would notice only when the buffer is used
            raise self._refusal(f"it has {ledger.limit:,}, of which {ledger.held:,} are in use")
        try:
            self.handle = cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes)
        except cl.Error as error:
            raise self._refusal(str(error)) from None
        ledger.add(nbytes)

    def _refusal(self, why: str) -> DeviceError:
        return DeviceError(
            f"The device has no {self.nbytes:,} bytes for '{self.name}' ({why}). "
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
