"""Rounds, the check for other processes, cores and memory."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.child import WorkerError
from edgelearn.errors import EdgelearnError
from edgelearn.lab import measure
from edgelearn.lab.bench.run import describe_machine
from edgelearn.lab.measure import PeakMemory, RoundsConfig, Sample, measure_in_turn, sample, take_block, usable_cores

QUIET = RoundsConfig(rounds=4, block_seconds=0.0, attempts=1)


def test_a_sample_lasts_as_long_as_it_should():
    steps = []
    taken = sample(lambda: steps.append(1), steps=3)
    assert len(taken.times) == 3 and len(steps) == 4 and taken.cpu_seconds >= 0
    assert sum(sample(lambda: None, seconds=0.01).times) >= 0.01


def test_turns_rotate_and_a_failed_worker_drops_out():
    order, failed = [], []

    def sampler(name):
        def take():
            order.append(name)
            if name == "b" and order.count("b") == 2:
                raise WorkerError("gone")
            return Sample([1.0], 0.0)

        return take

    samplers = {name: sampler(name) for name in "abc"}
    seen = []
    blocks = measure_in_turn(samplers, usable_cores(), QUIET, seen.append, lambda name, error: failed.append(name))
    assert "".join(order) == "abc" + "bca" + "ac" + "ca" and seen == [0, 1, 2, 3] and failed == ["b"]
    assert {name: len(found) for name, found in blocks.items()} == {"a": 4, "b": 1, "c": 4}
    order[:] = ["b"]
    with pytest.raises(WorkerError, match="gone"):
        measure_in_turn({"b": sampler("b")}, usable_cores(), QUIET)
    with pytest.raises(EdgelearnError, match="0"):
        measure_in_turn({}, usable_cores(), RoundsConfig(0))


@pytest.mark.parametrize(
    ("shares", "attempts", "seconds", "taken", "foreign", "noisy"),
    [
        ([0.02], 5, 1, 1, 0.02, False),
        ([0.5, 0.09, 0.07, 0.0], 5, 3, 3, 0.07, False),  # repeated until the machine is quiet
        ([0.5, 0.3, 0.1, 0.2], 4, 3, 4, 0.1, True),  # if it stays noisy, the quietest is kept, whatever its time
    ],
)
def test_blocks_on_a_machine_that_others_use(monkeypatch, shares, attempts, seconds, taken, foreign, noisy):
    """`shares`: of two cores that other processes use, attempt by attempt; attempt n takes n seconds a step."""
    now = SimpleNamespace(clock=0.0, busy=0.0, asked=0)

    def take():
        now.asked, now.clock, now.busy = now.asked + 1, now.clock + 1.0, now.busy + 1.5 + shares[now.asked] * 2
        return Sample([now.asked, now.asked * 10, now.asked], 1.5)

    clock = SimpleNamespace(perf_counter=lambda: now.clock, sleep=lambda seconds: None)
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "busy_seconds", lambda cores: now.busy)
    block = take_block(take, [0, 1], RoundsConfig(attempts=attempts))
    assert (block.seconds, block.steps, block.attempts, block.noisy) == (seconds, 3, taken, noisy)
    assert block.foreign == pytest.approx(foreign)


def test_busy_seconds_grow_with_work_of_the_chosen_cores(monkeypatch):
    before, begin = measure.busy_seconds(usable_cores()), time.process_time()
    while time.process_time() - begin < 0.3:
        np.ones(1000).sum()
    assert measure.busy_seconds(usable_cores()) - before > 0.2
    one = {
        "user": 1.0, "nice": 0.1, "system": 0.2, "idle": 50.0, "iowait": 7.0, "irq": 0.01, "softirq": 0.02,
        "steal": 0.03, "guest": 0.5,
    }  # fmt: skip
    times = [SimpleNamespace(_asdict=lambda t=t: t) for t in (one, {"user": 10.0, "idle": 0.0})]
    monkeypatch.setattr(measure.psutil, "cpu_times", lambda percpu: times)
    assert measure.busy_seconds([0]) == pytest.approx(1.36) and measure.busy_seconds([0, 1]) == pytest.approx(11.36)


def test_peak_memory_keeps_what_is_gone_until_it_restarts():
    before, peak = measure.peak_resident_bytes(), PeakMemory()
    block = np.ones(2**23)
    batches = 2**23  # Linux counts pages in batches, one for each thread: two readings of a peak can differ by that
    assert measure.peak_resident_bytes() + batches >= measure.resident_bytes() >= block.nbytes
    del block
    assert measure.peak_resident_bytes() + batches >= before and peak.over_imports > 2**26 - batches
    free, total = measure.machine_memory()
    assert 0 < free < total and describe_machine()["processor"] and describe_machine()["memory_bytes"] == total
    before = measure.peak_resident_bytes()
    measure.release_free_memory()
    if not measure.restart_peak():
        pytest.skip("this kernel has no clear_refs")
    assert measure.peak_resident_bytes() < before - 2**25
