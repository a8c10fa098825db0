"""Processor cores: which of them this process may use, and how busy they are."""

from __future__ import annotations

from collections.abc import Collection

import psutil

IDLE = {"idle", "iowait", "guest", "guest_nice"}  # guests are counted under user and nice, too


def usable_cores() -> list[int]:
    """Numbers of the processor cores this process may use; all cores where the system has no affinity (macOS)."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return sorted(process.cpu_affinity() or ())
    return list(range(psutil.cpu_count() or 1))


def bind(cores: Collection[int]) -> None:
    """Restrict this process to `cores`, where the system can do that."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        process.cpu_affinity(list(cores))


def busy_seconds(cores: Collection[int]) -> float:
    """Seconds that all processes together have used `cores` since the machine started, stolen time included."""
    times = psutil.cpu_times(percpu=True)
    return sum(v for core in cores for name, v in times[core]._asdict().items() if name not in IDLE)
