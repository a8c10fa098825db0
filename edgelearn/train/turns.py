"""One thread at a time uses a model: others wait for short calls, and are refused during a `fit`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from edgelearn.errors import PlanError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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


class _Shared(Protocol):
    turns: Turns


Owner = TypeVar("Owner", bound=_Shared)


def one_thread(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Make a method of an object with `turns` run in one thread at a time."""

    @wraps(method)
    def call(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self.turns.take(method.__name__):
            return method(self, *args, **kwargs)

    return call
