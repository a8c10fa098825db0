"""A description of the machine for reports."""

from __future__ import annotations

import platform
from pathlib import Path

from edgelearn.lab.measure.memory import machine_memory


def describe() -> dict[str, str | int]:
    """Processor, main memory in bytes, system and Python version."""
    return {
        "processor": _processor(),
        "memory_bytes": machine_memory()[1],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()  # Linux
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()
