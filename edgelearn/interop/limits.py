"""Limits of time and memory for processes that read files from elsewhere."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STILL = 9.0  # seconds without computing; a busy machine leaves a process some


@contextmanager
def watched(
    process: subprocess.Popen, seconds: float, memory: int, exceeded: Callable[[str], object],
    is_asked: Callable[[], bool] = lambda: True,
) -> Iterator[None]:  # fmt: skip
    """Call `exceeded` with the reason when a process computes for longer than `seconds`, stands still for STILL while
    it is asked for something, or grows by more than `memory` bytes."""
    import psutil

    done = threading.Event()

    def computed(process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    def watch() -> None:
        with suppress(psutil.Error):  # it has ended
            found = psutil.Process(process.pid)
            before, begun = found.memory_info().rss, computed(found)
            moved, last = time.monotonic(), begun
            while not done.wait(0.05):
                if (now := computed(found)) != last or not is_asked():
                    moved, last = time.monotonic(), now
                if now - begun > seconds:
                    exceeded(f"no end after {seconds:.0f} seconds of computing")
                elif time.monotonic() - moved > STILL:
                    exceeded(f"no end, and nothing computed for {STILL:.0f} seconds")
                elif found.memory_info().rss - before > memory:
                    exceeded(f"it takes more than {memory:,} bytes of memory")

    thread = threading.Thread(target=watch, name="edgelearn-limits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
