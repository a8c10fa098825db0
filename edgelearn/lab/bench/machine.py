"""What Linux's /proc says about the machine: how busy its cores are, how much memory is left."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Collection
from pathlib import Path

from edgelearn.errors import EdgelearnError


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise EdgelearnError(
            f"Measuring needs {path}, which can't be read here ({error.strerror}). Run the bench on Linux."
        ) from error


def usable_cores() -> list[int]:
    """Numbers of the processor cores that this process may use."""
    _read("/proc/stat")
    return sorted(os.sched_getaffinity(0))


def busy_seconds(cores: Collection[int]) -> float:
    """Seconds that `cores` together have worked since the machine started, for whomever, stolen time included."""
    total = 0
    for line in _read("/proc/stat").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            total += user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def _kib_field(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise EdgelearnError(f"{path} has no field {name}; the bench needs a usual Linux kernel.")


def memory() -> tuple[int, int]:
    """Bytes of main memory still available, and in all."""
    return _kib_field("/proc/meminfo", "MemAvailable"), _kib_field("/proc/meminfo", "MemTotal")


def resident_bytes() -> int:
    """Main memory this process holds now."""
    return _kib_field("/proc/self/status", "VmRSS")


def peak_resident_bytes() -> int:
    """The most main memory this process has held since its start, or since `restart_peak`."""
    return _kib_field("/proc/self/status", "VmHWM")


def restart_peak() -> bool:
    """Count the peak from what is held now; False where the kernel doesn't offer it (see proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release_free_memory() -> None:
    """Give back to the system what the C library holds of memory that was freed, where it can do that."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def describe() -> dict[str, str | int]:
    """The machine in words, for the report."""
    models = [line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.machine(),
        "memory_bytes": memory()[1],
        "system": platform.platform(),
        "python": platform.python_version(),
    }
