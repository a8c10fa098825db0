"""The threads on which a CPU driver computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def a_core_each() -> Iterator[None]:
    """Threads that a driver starts inside get a core each, of those that this process may use, if they are as many.

    PoCL leaves them to the scheduler, which may put two on one core while another is idle: a forward pass of MobileNet
    at batch 1 then takes 5 ms in place of 3, for as long as they stay there. Does nothing where threads cannot be
    seen (other systems than Linux).
    """
    before = _threads()
    yield
    started = sorted(_threads() - before)
    cores = sorted(os.sched_getaffinity(0)) if started else []
    if len(started) == len(cores):
        for thread, core in zip(started, cores, strict=True):
            os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()
