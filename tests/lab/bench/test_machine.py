import time

import numpy as np
import pytest

from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench import machine


def test_busy_seconds_grow_with_work():
    cores = machine.usable_cores()
    before, begin = machine.busy_seconds(cores), time.process_time()
    while time.process_time() - begin < 0.3:
        np.ones(1000).sum()
    assert machine.busy_seconds(cores) - before > 0.2


def test_only_the_cores_asked_for_count(tmp_path, monkeypatch):
    text = "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 5000 7 1 2 3 50 0\ncpu1 1000 0 0 0 0 0 0 0 0 0\nintr 12\n"
    monkeypatch.setattr(machine, "_read", lambda path: text)
    ticks = machine.os.sysconf("SC_CLK_TCK")
    assert machine.busy_seconds([0]) == 136 / ticks
    assert machine.busy_seconds([0, 1]) == 1136 / ticks


def test_peak_memory_keeps_what_is_gone():
    before = machine.peak_resident_bytes()
    block = np.ones(2**23)
    assert machine.peak_resident_bytes() >= machine.resident_bytes() >= block.nbytes
    del block
    assert machine.peak_resident_bytes() >= before
    free, total = machine.memory()
    assert 0 < free < total


def test_without_proc_the_error_says_so():
    with pytest.raises(EdgelearnError, match="Run the bench on Linux"):
        machine._read("/proc/no/such/file")


def test_a_peak_restarts():
    block = np.ones(2**23)
    before = machine.peak_resident_bytes()
    del block
    machine.release_free_memory()
    if not machine.restart_peak():
        pytest.skip("this kernel has no clear_refs")
    assert machine.peak_resident_bytes() < before - 2**25
