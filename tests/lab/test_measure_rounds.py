"""Rounds: the order of turns, and the check for other processes."""

from types import SimpleNamespace

import pytest

from edgelearn.child import WorkerError
from edgelearn.errors import EdgelearnError
from edgelearn.lab import measure
from edgelearn.lab.measure import RoundsConfig, Sample, measure_in_turn, sample, take_block, usable_cores

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


class Busy:
    """A machine on which other processes use the given shares of the cores, attempt by attempt."""

    def __init__(self, monkeypatch, shares, cores=2):
        self.clock = self.busy = 0.0
        self.shares, self.cores, self.asked = iter(shares), cores, 0
        clock = SimpleNamespace(perf_counter=lambda: self.clock, sleep=lambda seconds: None)
        monkeypatch.setattr(measure, "time", clock)
        monkeypatch.setattr(measure, "busy_seconds", lambda cores: self.busy)

    def __call__(self):
        self.asked += 1
        self.clock += 1.0
        own = 1.5
        self.busy += own + next(self.shares) * self.cores
        return Sample([self.asked, self.asked * 10, self.asked], own)


def test_a_quiet_block_is_taken_at_once(monkeypatch):
    block = take_block(Busy(monkeypatch, [0.02]), [0, 1], RoundsConfig())
    assert (block.seconds, block.steps, block.attempts, block.noisy) == (1, 3, 1, False)
    assert block.foreign == pytest.approx(0.02)


def test_a_block_is_repeated_until_the_machine_is_quiet(monkeypatch):
    block = take_block(Busy(monkeypatch, [0.5, 0.09, 0.07, 0.0]), [0, 1], RoundsConfig())
    assert (block.seconds, block.attempts, block.noisy) == (3, 3, False)


def test_if_it_stays_noisy_the_quietest_is_kept_whatever_its_time(monkeypatch):
    block = take_block(Busy(monkeypatch, [0.5, 0.3, 0.1, 0.2]), [0, 1], RoundsConfig(attempts=4))
    assert (block.seconds, block.attempts, block.noisy) == (3, 4, True)
    assert block.foreign == pytest.approx(0.1)
