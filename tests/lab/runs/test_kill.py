"""kill -9 at any moment leaves every file whole."""

import random
import time
from pathlib import Path

import numpy as np
import pytest

from edgelearn.lab.runs.store import CHANGES

WRITER = Path(__file__).with_name("killed_writer.py")


@pytest.fixture
def run_id(store):
    with store.create("test", {"seed": 7}) as run:
        run.append_epoch({"epoch": 1})
        run.save_checkpoint({"weights": np.ones((64, 64), np.float32)}, {"epoch": 1})
    return run.id


def test_kill_at_random_moments(store, run_id, start_python):
    moments = random.Random(20261120)
    reached = 1
    for _ in range(8):
        writer = start_python(WRITER, "loop", store.root)
        # "writing" says that it took the dead one's lock over and found everything whole.
        assert writer.stdout.readline() == "writing\n", writer.communicate()
        assert store.open(run_id).status == "running"
        time.sleep(moments.uniform(0.01, 0.1))
        writer.kill()
        writer.wait()
        run = store.open(run_id)
        assert run.status == "interrupted"
        tensors, state = run.load_checkpoint()
        assert np.all(tensors["weights"] == state["epoch"])
        epochs = [row["epoch"] for row in run.history()]
        assert epochs == list(range(1, len(epochs) + 1))
        assert state["epoch"] >= reached
        reached = state["epoch"]
    assert reached > 8
    # The last kill may have come between the two renames of a checkpoint: the next one leaves both, and nothing else.
    with run.resume() as run:
        run.save_checkpoint(tensors, state)
    assert sorted({path.name for path in run.folder.iterdir()} - {CHANGES}) == [
        "checkpoint-previous.safetensors",
        "checkpoint.safetensors",
        "history.jsonl",
        "lock",
        "run.json",
    ]


def test_kill_at_every_call(store, run_id, start_python):
    output, errors = start_python(WRITER, "calls", store.root).communicate(timeout=60)
    # Between the two renames of a checkpoint, and only there, the previous one is needed.
    assert all("is missing; going on from" in line for line in errors.splitlines()), errors
    assert errors
    assert int(output) > 10


def test_kill_at_every_call_of_create(store, start_python):
    output, errors = start_python(WRITER, "create", store.root).communicate(timeout=60)
    assert not errors
    assert int(output) > 8
