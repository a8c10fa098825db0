"""One training at a time on a device, in processes of their own."""

import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest

from edgelearn.errors import Interrupted
from edgelearn.experiments.turn import Turn
from edgelearn.lab.runs import RunStore
from edgelearn.runtime import choose_device
from edgelearn.widgets import Waiting

TRAIN = """
import sys, time
from edgelearn.experiments.experiment import Experiment
from edgelearn.lab.runs import RunStore
from edgelearn.train import LambdaCallback
from tests.widgets.conftest import TinyConfig, load

def begin(logs):
    print(time.monotonic(), flush=True)
    sys.stdin.readline()

def end(logs):
    print(time.monotonic(), flush=True)

callbacks = [LambdaCallback(on_train_begin=begin, on_train_end=end)]
toys = Experiment("toys", TinyConfig, load, command="toys")
toys.start(TinyConfig(epochs=1), RunStore(sys.argv[1]), callbacks, lambda line: None)
"""


def test_of_processes_one_trains_and_the_others_say_for_whom_they_wait(tmp_path):
    store = RunStore(tmp_path / "runs")
    environment = os.environ | {"EDGELEARN_LOCKS": str(tmp_path / "locks")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def start() -> Any:
        return subprocess.Popen([sys.executable, "-c", TRAIN, str(store.root)], env=environment, **pipes)

    first = start()
    begun = float(first.stdout.readline())
    (run,) = store.list().ids
    others = [start() for _ in range(3)]
    for other in others:
        assert other.stdout.readline() == f"Waits for {run}, which another program trains. Ctrl-C ends the wait.\n"
    others[0].send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in others[0].communicate(timeout=60)[1] and store.list().ids == [run]
    for each in (first, *others[1:]):
        each.stdin.write("\n")
        each.stdin.flush()
    spans = [(begun, float(first.communicate(timeout=60)[0]))]
    for other in others[1:]:
        lines = other.communicate(timeout=60)[0].splitlines()
        begun, ended = (float(line) for line in lines if not line.startswith("Waits"))
        spans.append((begun, ended))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert [each.status for each in store.list()] == ["finished"] * 3


def test_a_cell_that_trains_waits_too(tmp_path, monkeypatch):
    """Neither it nor what it starts waits for itself."""
    monkeypatch.setenv("EDGELEARN_LOCKS", str(tmp_path))
    device = choose_device().device
    with Waiting("Training", device), Turn(device.id).taken():
        pass
    code = f"from edgelearn.experiments.turn import Turn; Turn({device.id!r}).take(); print(1, flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "1\n"
        cell = Waiting("Training", device)
        told = Waiting._told

        def interrupt(cell, text):
            told(cell, text)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

        monkeypatch.setattr(Waiting, "_told", interrupt)
        with pytest.raises(Interrupted, match="Training: stopped"), cell:
            raise AssertionError("it trains")
        assert f"Waits for process {other.pid}, which another program trains. ■ ends" in cell._html()
        other.communicate("\n")
    turn = Turn(device.id)
    assert turn.take() is None
    turn.release()
