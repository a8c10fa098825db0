"""Processes of Flower that outlive the one which started them: recorded, so that whoever resumes a run can end them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import psutil

from edgelearn import atomic

_FILE = "processes.json"  # (number, time of creation) of each process, by name
_LAB = "lab"  # the process that started the others
_PATIENCE = 5  # seconds until a process is killed


def record(folder: Path, processes: Mapping[str, Popen]) -> None:
    """Write down this process and those that it started, each the leader of a session."""
    running = {_LAB: os.getpid()} | {name: process.pid for name, process in processes.items()}
    entries = {}
    for name, number in running.items():
        with suppress(psutil.NoSuchProcess):
            entries[name] = [number, psutil.Process(number).create_time()]
    atomic.write_json(folder / _FILE, entries)


def end_left_over(folder: Path) -> None:
    """End the sessions that `record` wrote down, unless the process that started them lives."""
    try:
        entries = json.loads((folder / _FILE).read_text())
        lab, *others = [(name == _LAB, int(number), float(at)) for name, (number, at) in entries.items()]
    except (OSError, ValueError, TypeError, AttributeError):
        return
    if _created(lab[1]) == lab[2]:
        return
    for _, number, at in others:
        if _created(number) in (at, None):  # None: the leader is dead, but its session may not be
            with suppress(OSError):
                os.killpg(number, signal.SIGKILL)
    time.sleep(0.2)  # their locks are released when they are gone
    (folder / _FILE).unlink(missing_ok=True)


def end(process: Popen) -> None:
    """End a process and those of its session: politely, then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutExpired):
            process.wait(_PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _created(number: int) -> float | None:
    """When a process was created; None if there is none."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number).create_time()
    return None
