"""Processes of Flower, which start others in sessions of their own: found by their environment, and ended."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import psutil

from edgelearn import atomic

HOME = "FLWR_HOME"  # of the environment: the deployment's folder, in all of its processes
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


def end_all(folder: Path) -> None:
    """End every process of a deployment for good, and wait until they are gone."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(HOME) == str(folder):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, _PATIENCE)


def end(process: Popen) -> None:
    """End a process: politely, then for good."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)
