"""One writer per run: a lock that the operating system releases when its holder ends.

The lock is tied to an open file, so the kernel releases it when the process ends, however it ends: no stale lock
outlives a kill, a reboot, or a process number that was given out again.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from pathlib import Path

from filelock import lock_descriptor

from edgelearn import atomic, records
from edgelearn.errors import RunError

# `is_held` takes the lock for an instant; whoever meets it tries again.
_ATTEMPTS, _READER_ATTEMPTS = 10, 3
_PAUSE_SECONDS = 0.01


class Lock:
    """An exclusive lock on the file at `path`, which also names the holder for error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _locks.add(self)

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock; raises RunError naming the holder if another has it, or if locking fails."""
        if self.held:
            return
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise atomic.explain(error, self.path, len(holder)) from error
        try:
            self._wait(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, holder)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise atomic.explain(error, self.path, len(holder)) from error
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock by closing the file; unlocking would also release the lock of a forked parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()

    def _wait(self, descriptor: int) -> None:
        try:
            locked = _try(descriptor, _ATTEMPTS)
        except OSError as error:
            raise RunError(
                f"{self.path} can't be locked ({error.strerror}): this file system has no locks. "
                "Keep runs on another one (set EDGELEARN_RUNS)."
            ) from error
        if not locked:
            raise RunError(
                f"The run in {self.path.parent} is being written by {_holder(descriptor)}. "
                "Wait until it ends or stop it, then try again."
            )


def is_held(path: Path) -> bool:
    """True if any process holds the lock at `path`. Changes nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try(descriptor, _READER_ATTEMPTS)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _try(descriptor: int, attempts: int) -> bool:
    """True once the file is locked; False if another holds it at every attempt."""
    for attempt in range(attempts):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        if lock_descriptor(descriptor, blocking=False):
            return True
    return False


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = records.parse(os.read(descriptor, 4096), dict)
        here = " (this one)" if holder["pid"] == os.getpid() else ""
        return f"process {holder['pid']}{here} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # Windows locks the first byte against reading, too
        return "another process"


# A forked child shares the parent's open file and would keep its lock alive after the parent's death.
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
