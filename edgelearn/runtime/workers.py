"""The threads on which a CPU driver computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

POCL_THREADS = "POCL_MAX_PTHREAD_COUNT"  # by which PoCL is told how many to start


@contextmanager
def a_core_each() -> Iterator[None]:
    """Threads that a driver starts inside are as many as the cores that this process may use, and get one each.

    PoCL would start one for every core of the machine, and leaves them to the scheduler, which may put two on one core
    while another is idle: a forward pass of MobileNet at batch 1 then takes 5 ms in place of 3, for as long as they
    stay there. Does nothing where threads cannot be placed (other systems than Linux).
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores, before = sorted(os.sched_getaffinity(0)), _threads()
    asked = os.environ.get(POCL_THREADS)
    os.environ[POCL_THREADS] = asked or str(len(cores))
    try:
        yield
    finally:
        if asked is None:
            del os.environ[POCL_THREADS]
    started = sorted(_threads() - before)
    if len(started) == len(cores):
        for thread, core in zip(started, cores, strict=True):
            os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
