"""kill -9 at any moment leaves every file whole."""

from pathlib import Path

import numpy as np
import pytest

WRITER = Path(__file__).with_name("killed_writer.py")


@pytest.fixture
def run_id(store):
    with store.create("test", {"seed": 7}) as run:
        run.append_epoch({"epoch": 1})
        run.save_checkpoint({"weights": np.ones((64, 64), np.float32)}, {"epoch": 1})
    return run.id


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
