"""Ctrl-C ends a step, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) inside calls `stop`; a second one raises KeyboardInterrupt at once. Outside the
    main thread, where Python allows no signal handlers, this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number, frame) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
