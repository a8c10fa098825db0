import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgelearn.lab.runs import RunStore

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "store")


@pytest.fixture
def full_disk(monkeypatch):
    """A block in which nothing can be written."""

    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def fill():
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            yield

    return fill


@pytest.fixture
def start_python():
    """Start Python on the arguments, able to import this edgelearn; killed at the end of the test."""
    started = []

    def start(*arguments):
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
