"""Limits of time and memory for processes that read files from elsewhere."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STILL = 9.0  # seconds without computing; a busy machine leaves a process some
SHARE = 0.25  # of a processor that a busy machine leaves a process at least, all the while


@contextmanager
def watched(
    process: subprocess.Popen, seconds: float, memory: int, exceeded: Callable[[str], object],
    is_asked: Callable[[], bool] = lambda: True,
) -> Iterator[None]:  # fmt: skip
    """Call `exceeded` with the reason when a process exceeds a limit.

    Arguments:
    - `process`: the process.
    - `seconds`: computing time that it may take; by the clock it may take that divided by SHARE while it is asked.
    - `memory`: bytes by which it may grow.
    - `exceeded`: gets the reason; also after STILL seconds without computing while the process is asked.
    - `is_asked`: True while an answer is due (default: always).
    """
    import psutil

    done = threading.Event()

    def computed(process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    def watch() -> None:
        with suppress(psutil.Error):  # it has ended
            found = psutil.Process(process.pid)
            before, begun = found.memory_info().rss, computed(found)
            clock, moved, last, left = time.monotonic(), time.monotonic(), begun, seconds / SHARE
            while not done.wait(0.05):
                earlier, clock = clock, time.monotonic()
                left -= clock - earlier if is_asked() else 0.0
                if (now := computed(found)) != last or not is_asked():
                    moved, last = clock, now
                if now - begun > seconds:
                    exceeded(f"no end after {seconds:.0f} seconds of computing")
                elif left < 0:
                    exceeded(f"no end after {seconds / SHARE:.0f} seconds")
                elif clock - moved > STILL:
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
