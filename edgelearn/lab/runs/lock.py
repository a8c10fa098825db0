"""One writer per run: a lock that the operating system gives back when its holder is gone.

`flock` ties the lock to an open file, so the kernel frees it when the process ends, however it ends: no
stale lock outlives a kill, a reboot, or a process number that was given out again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from edgelearn import atomic
from edgelearn.errors import RunError

# `is_held` takes a shared lock for an instant; an acquire that meets it tries again.
_ATTEMPTS = 10
_PAUSE_SECONDS = 0.01


class Lock:
    """An exclusive lock on the file at `path`, which also names the holder for error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock; raises RunError naming the holder if another has it, or if locking fails."""
        if self.held:
            return
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise atomic.explain(error, self.path, len(holder)) from error
        try:
            self._wait(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder, 0)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise atomic.explain(error, self.path, len(holder)) from error
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back. Closing does it; unlocking would also free the lock of a forked parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()

    def _wait(self, descriptor: int) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise RunError(
                        f"{self.path} can't be locked ({error.strerror}): this file system has no locks. "
                        "Keep runs on another one (set EDGELEARN_RUNS)."
                    ) from error
            if attempt < _ATTEMPTS - 1:
                time.sleep(_PAUSE_SECONDS)
        raise RunError(
            f"The run in {self.path.parent} is being written by {_holder(descriptor)}. "
            "Wait until it ends or stop it, then try again."
        )


def is_held(path: Path) -> bool:
    """Whether any process holds the lock at `path`. Changes nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        here = " (this one)" if holder["pid"] == os.getpid() else ""
        return f"process {holder['pid']}{here} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


# A forked child shares the parent's open file and would keep its lock alive after the parent's death.
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
