"""Which process started a deployment, and what a dead one left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import psutil

from edgelearn import atomic

from .guard import end_all

_FILE = "lab.json"  # number and time of creation of the process that started them
_PATIENCE = 5  # seconds


def record(folder: Path) -> None:
    """Write down that this process starts those of a deployment."""
    atomic.write_json(folder / _FILE, [os.getpid(), psutil.Process().create_time()])


def end_left_over(folder: Path) -> None:
    """End the processes of a deployment, unless the one that started them lives."""
    try:
        number, at = json.loads((folder / _FILE).read_text())
        lives = psutil.Process(int(number)).create_time() == at
    except psutil.NoSuchProcess:
        lives = False
    except (OSError, ValueError, TypeError):
        return
    if not lives:
        end_all(folder)
        (folder / _FILE).unlink(missing_ok=True)


def end(process: Popen) -> None:
    """End a process: politely, then for good."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)
