"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) end training behind a step, not in the middle of one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from edgelearn.errors import Interrupted

from .status import TrainingStatus

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def interrupted_between_steps(status: TrainingStatus) -> Iterator[None]:
    """The first Ctrl-C inside ends the training of `status` behind a step, and is raised then as Interrupted; a second
    one is raised at once. Does nothing where something else handles Ctrl-C, such as `on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False

    def stop() -> None:
        nonlocal asked
        asked = status.stop_training = True

    with on_interrupt(stop, [signal.SIGINT]):
        yield
    if asked:
        at = status.position
        raise Interrupted(
            f"Stopped after {at.updates} updates, in epoch {at.epoch + 1} of {status.epochs}. Call fit again with the "
            f"same arguments to go on, or compile to train anew."
        )


@contextmanager
def on_interrupt(stop: Callable[[], None], signals: Sequence[int] | None = None) -> Iterator[None]:
    """The first signal inside calls `stop`; a second one raises KeyboardInterrupt at once. Outside the main thread,
    where Python allows no signal handlers, this does nothing. `signals`: default all three of this module."""
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

    before = {number: signal.signal(number, handle) for number in signals or _signals()}
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
