"""The threads on which a CPU driver computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress

POCL_THREADS = "POCL_MAX_PTHREAD_COUNT"  # environment variable: how many threads PoCL starts
THREADS = "/proc/self/task"
MARK = "edgelearn-open"  # name of the opening thread, which the threads that it starts inherit; 15 bytes at most

_opening = threading.Lock()
_opened: set[Hashable] = set()


@contextmanager
def a_core_each(driver: Hashable) -> Iterator[None]:
    """Pin each thread that this thread starts in the block, in which `driver` is opened, to a core of its own, one for
    each core of this process.

    By default PoCL starts a thread for every core of the machine and the scheduler may put two on one core while
    another is idle: a forward pass of MobileNet at batch 1 then takes 5 ms instead of 3. Does nothing on systems other
    than Linux, nor once the driver is open. Threads that other parts of the program start meanwhile are left alone.

    PoCL reads the number of threads from the process's environment with getenv. It is set for C alone, until the block
    ends: Python's os.environ never has it, but a child process that another thread starts in the block may inherit it.
    """
    with _opening:
        if driver in _opened or not hasattr(os, "sched_setaffinity") or not os.path.isdir(THREADS):
            yield
            return
        me, cores, before = threading.get_native_id(), sorted(os.sched_getaffinity(0)), _threads()
        name, sets = _name(me), POCL_THREADS not in os.environ
        if sets:
            os.putenv(POCL_THREADS, str(len(cores)))
        _rename(me, MARK)
        try:
            yield
            _opened.add(driver)
        finally:
            _rename(me, name)
            started = sorted(thread for thread in _threads() - before if _name(thread) == MARK)
            for thread in started:
                _rename(thread, name)
            if sets:
                os.unsetenv(POCL_THREADS)
        if len(started) == len(cores):
            for thread, core in zip(started, cores, strict=True):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(THREADS)}


def _name(thread: int) -> str:
    """The name that Linux has for a thread; empty once it has ended."""
    try:
        with open(f"{THREADS}/{thread}/comm") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _rename(thread: int, name: str) -> None:
    with suppress(OSError), open(f"{THREADS}/{thread}/comm", "w") as file:
        file.write(name)
