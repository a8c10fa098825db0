"""A short part of the torture suite: a disk that is full, and what the checks after a kill find."""

import shutil

import numpy as np
import pytest

from edgelearn.lab.runs import RunStore

from . import disks, kills


@pytest.mark.skipif(not disks.unshare(), reason="small file systems can't be mounted here (unshare)")
def test_a_full_disk_of_caches():
    outcome = disks.run("caches", float("inf"), levels=(64 << 10,))
    assert (outcome.attacks, outcome.done, outcome.failures) == (1, 1, [])


def test_what_is_lost_after_a_kill_is_found(tmp_path):
    store = RunStore(tmp_path)
    with store.create("test", {"seed": 1}) as run:
        for epoch in (1, 2):
            run.append_epoch({"epoch": epoch})
            run.save_checkpoint({"a": np.ones(2, np.float32)}, {"epoch": epoch, "updates": 4 * epoch})
    assert kills.check(store, 0) == 8 and kills.check(store, 8) == 8
    with pytest.raises(AssertionError):
        kills.check(store, 9)
    history = run.folder / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(AssertionError):
        kills.check(store, 8)
    history.write_text(whole)
    shutil.copy(run.folder / "run.json", run.folder / "checkpoint.safetensors")
    with pytest.raises(Exception, match="corrupt"):
        kills.check(store, 8)
