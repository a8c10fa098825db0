"""Measure how fast a device copies to and from offloaded pages, for the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from edgelearn.compile import LaunchTimes, Offload
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device

from .context import Context
from .pages import Pages

PROBE, REPEATS = 1 << 20, 9  # bytes copied out and in, and how often


def launch_times(device: Device, allow: Sequence[Encoding] = ()) -> LaunchTimes:
    """The launch times known for `device`; with measured copies where `allow` has an Offload. Raises PagingError."""
    known = LaunchTimes.of(device)
    offload = next((strategy for strategy in allow if isinstance(strategy, Offload)), None)
    return known if offload is None else replace(known, paging=bytes_per_second(device, offload.folder))


def bytes_per_second(device: Device, folder: str | None = None) -> float:
    """Median speed of copies out and in again, to the host's memory or to a file in `folder`. Raises PagingError."""
    context, pages = Context(device), Pages(PROBE, folder)
    memory = context.allocate(PROBE, "probe")
    seconds = []
    for _ in range(REPEATS):
        start = perf_counter()
        context.read(memory.handle, pages.words)
        context.write(memory.handle, pages.words)
        seconds.append(perf_counter() - start)
    memory.release()
    return 2 * PROBE / float(np.median(seconds))
