"""Processes of Flower, which start others in sessions of their own: found by their environment, and ended.

As a program, this file is a guard: it ends the processes of a lab that died. It imports nothing of the package, so that
it starts at once and stays small.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import psutil

HOME = "FLWR_HOME"  # of the environment: the deployment's folder, in all of its processes
LAB = "EDGELEARN_LAB"  # of the environment: the process that started them
_PATIENCE = 5  # seconds


def this_lab() -> str:
    """Return number and time of creation of this process."""
    return f"{os.getpid()} {psutil.Process().create_time()}"


def start_guard(folder: Path) -> Popen:
    """Start a process that ends those of a deployment as soon as this one is gone, however it went. Kill it
    where that isn't wanted any more."""
    return Popen(
        [sys.executable, "-P", __file__, str(folder), this_lab()], stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def end_all(folder: Path, lab: str | None = None) -> None:
    """End every process of a deployment for good, and wait until they are gone.

    Arguments:
    - `folder`: of the deployment.
    - `lab`: end only those that this lab started, as `this_lab` names it (default None: all).
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(HOME) == str(folder) and lab in (None, variables.get(LAB)):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, _PATIENCE)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends with the process that holds the other end of the pipe
    end_all(Path(sys.argv[1]), sys.argv[2])
