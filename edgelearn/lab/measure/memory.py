"""Main memory of this process: resident bytes, their peak, and the peak over what the imports took."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import psutil


class PeakMemory:
    """Peak resident memory of this process minus its resident memory at creation: create it after the imports."""

    def __init__(self) -> None:
        release_free_memory()
        self.after_imports = resident_bytes()

    @property
    def over_imports(self) -> int:
        """Peak since the process started, or since `restart_peak`, minus memory after the imports; bytes."""
        return peak_resident_bytes() - self.after_imports


def resident_bytes() -> int:
    """Main memory that this process holds now."""
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """Largest main memory that this process has held since its start, or since `restart_peak`."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # POSIX only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def restart_peak() -> bool:
    """Restart the peak at the memory held now; False where the kernel can't (see proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release_free_memory() -> None:
    """Return freed memory that the C library still holds to the system, where it can do that (glibc)."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def machine_memory() -> tuple[int, int]:
    """(available, total) bytes of main memory."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total
