"""Cores and memory of the machine."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.lab import measure
from edgelearn.lab.bench import run
from edgelearn.lab.measure import PeakMemory, usable_cores


def test_busy_seconds_grow_with_work():
    before, begin = measure.busy_seconds(usable_cores()), time.process_time()
    while time.process_time() - begin < 0.3:
        np.ones(1000).sum()
    assert measure.busy_seconds(usable_cores()) - before > 0.2


class CpuTimes(SimpleNamespace):
    def _asdict(self):
        return vars(self)


def test_only_the_chosen_cores_count(monkeypatch):
    times = [
        CpuTimes(user=1.0, nice=0.1, system=0.2, idle=50.0, iowait=7.0, irq=0.01, softirq=0.02, steal=0.03, guest=0.5),
        CpuTimes(user=10.0, idle=0.0),
    ]
    monkeypatch.setattr(measure.psutil, "cpu_times", lambda percpu: times)
    assert measure.busy_seconds([0]) == pytest.approx(1.36)
    assert measure.busy_seconds([0, 1]) == pytest.approx(11.36)


def test_peak_memory_keeps_what_is_gone():
    before = measure.peak_resident_bytes()
    peak = PeakMemory()
    block = np.ones(2**23)
    assert measure.peak_resident_bytes() >= measure.resident_bytes() >= block.nbytes
    del block
    assert measure.peak_resident_bytes() >= before and peak.over_imports > 2**26 - 2**20
    free, total = measure.machine_memory()
    assert 0 < free < total


def test_a_peak_restarts():
    block = np.ones(2**23)
    before = measure.peak_resident_bytes()
    del block
    measure.release_free_memory()
    if not measure.restart_peak():
        pytest.skip("this kernel has no clear_refs")
    assert measure.peak_resident_bytes() < before - 2**25


def test_the_description_of_the_machine():
    described = run.describe_machine()
    assert described["processor"] and described["memory_bytes"] == measure.machine_memory()[1]
