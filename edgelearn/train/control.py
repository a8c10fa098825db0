"""Who may use a model, and how its training is stopped: one thread at a time, and signals between two steps."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from edgelearn.display import plural
from edgelearn.errors import Interrupted, PlanError

from .state import TrainingStatus

Method = TypeVar("Method", bound=Callable)


class Turns:
    """The right to use a model. The thread that has it may take it again, as callbacks of `fit` do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._calls: list[str] = []  # names of the thread's calls, the outermost first

    @contextmanager
    def take(self, call: str) -> Iterator[None]:
        """Wait until no other thread uses the model. Raises PlanError if another thread is in `fit`."""
        me = threading.current_thread()
        with self._changed:
            while self._thread not in (None, me):
                if "fit" in self._calls:
                    raise PlanError(
                        f"The model is training: {call} was called in thread '{me.name}' while fit runs in thread "
                        f"'{self._thread.name}'. Wait for it, use the model in a callback, or make another "
                        f"Model for this thread."
                    )
                self._changed.wait()
            self._thread = me
            self._calls.append(call)
        try:
            yield
        finally:
            with self._changed:
                self._calls.pop()
                if not self._calls:
                    self._thread = None
                    self._changed.notify_all()


def one_thread(method: Method) -> Method:
    """Make a method of an object with `turns` run in one thread at a time."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self.turns.take(method.__name__):
            return method(self, *args, **kwargs)

    return cast(Method, call)


HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def interrupted_between_steps(status: TrainingStatus) -> Iterator[None]:
    """The first Ctrl-C inside ends the training of `status` after a step, and is raised then as Interrupted; a second
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
            f"Stopped after {plural(at.updates, 'update')}, in epoch {at.epoch + 1} of {status.epochs}. Call fit again "
            f"with the "
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
