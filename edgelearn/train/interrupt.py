"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) end training behind a step, not in the middle of one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal inside calls `stop`; a second one raises KeyboardInterrupt at once. Outside the main thread,
    where Python allows no signal handlers, this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, terminals = False, _terminals()

    def handle(number, frame) -> None:
        nonlocal asked
        if number == HANGUP:
            _leave(terminals)
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    before = {number: signal.signal(number, handle) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> Iterator[int]:
    yield from (signal.SIGINT, signal.SIGTERM)
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:  # as under nohup
        yield HANGUP


def _terminals() -> list[int]:
    """Descriptors of the standard streams that are a terminal; once it is closed, nothing tells."""
    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None and not stream.closed]
    return [stream.fileno() for stream in streams if stream.isatty()]


def _leave(descriptors: list[int]) -> None:
    """Write to nowhere from now on: the first line to a terminal that is gone would end the training with an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)
