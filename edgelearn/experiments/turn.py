"""One training at a time on a device: the programs of a user wait for one another, by a locked file for each device.

The kernel gives a lock back when its process ends, however it ends.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgelearn import caches
from edgelearn.errors import RunError
from edgelearn.lab.runs.run import Lock

VARIABLE = "EDGELEARN_LOCKS"  # the folder; empty: nobody waits
LOOK_SECONDS = 0.5  # from one look at the lock to the next
_log = logging.getLogger(__name__)
_local = threading.local()


def _held() -> dict[Path | None, Lock]:
    """Locks that this thread holds, by path: what it starts meanwhile doesn't wait for them."""
    if not hasattr(_local, "held"):
        _local.held = {}
    return _local.held


def _print(text: str) -> None:
    if text:
        print(text)


told: ContextVar[Callable[[str], object]] = ContextVar("told", default=_print)
"""Is called with a line on whom a training waits for, and with "" when the wait is over (default: prints the line)."""


@dataclass(frozen=True)
class Holder:
    """Who trains on a device.

    Arguments:
    - `name`: id of the run, or the process where there is no run.
    - `here`: True for another thread of this process.
    """

    name: str
    here: bool

    def __str__(self) -> str:
        return f"{self.name}, which {'this' if self.here else 'another'} program trains"


class Turn:
    """The right to train on a device.

    Arguments:
    - `device`: its id.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._lock: Lock | None = None

    @cached_property
    def _path(self) -> Path | None:
        if (wanted := caches.chosen("locks", VARIABLE)) is None:
            return None
        folder = caches.place(wanted, VARIABLE, room=0).folder
        return folder and folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', self.device)}.lock"

    def take(self) -> Holder | None:
        """Take the turn and return None, or return who has it. Where files can't be locked nobody waits."""
        if self._path is None or self._path in _held():
            return None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(self._path)
            other = lock.take()
        except (OSError, RunError) as error:
            _log.info("Trainings on %s don't wait for one another: %s", self.device, error)
            return None
        if other is not None:
            name = other.get("run") or (f"process {other['pid']}" if "pid" in other else "a training")
            return Holder(name, other.get("pid") == os.getpid())
        _held()[self._path] = self._lock = lock
        return None

    def note(self, run: str) -> None:
        """Tell those who wait which run trains."""
        if (lock := _held().get(self._path)) is not None:
            with suppress(OSError):
                lock.note(run=run)

    def release(self) -> None:
        """Give the turn back, in the thread that took it."""
        if self._lock is not None and self._path is not None:
            del _held()[self._path]
            self._lock.release()
            self._lock = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and say for whom; have it inside. An interrupt ends the wait."""
        say, known = told.get(), None
        while (holder := self.take()) is not None:
            if holder != known:
                say(f"Waits for {holder}. Ctrl-C ends the wait.")
                known = holder
            time.sleep(LOOK_SECONDS)
        try:
            if known is not None:
                say("")
            yield
        finally:
            self.release()
