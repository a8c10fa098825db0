"""LaunchTimes of launches, measured for the planner."""

import re

import pytest

from edgelearn.compile import LaunchTimes, Request, make_plan
from edgelearn.compile.memory.launch_times import key
from edgelearn.compile.memory.policies import checkpoints
from edgelearn.errors import FormatError, RunError
from edgelearn.graph import Network
from edgelearn.lab.profile import launches
from edgelearn.lab.profile.launches import measure_launches, table_of
from edgelearn.lab.profile.measure import StepTiming, TimedLaunch
from edgelearn.launch import Launch
from edgelearn.ops import SGD, Conv2D, Dense, Flatten, ReLU
from edgelearn.runtime import choose_device
from edgelearn.tuned import launch_times as store


def test_costs_are_measured_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("two", (8, 8, 16))
    for name in ("first", "second"):
        network.add(name, Conv2D(16, 3))
        network.add(f"{name}_relu", ReLU())
    network.add("flat", Flatten())
    network.add("dense", Dense(5))
    plans = [
        make_plan(Request(network, 2, 2, SGD(0.1), activation_memory=s), device) for s in ({}, checkpoints(network))
    ]
    table = measure_launches(plans[:1], device, rounds=2, busy=True)
    costs = LaunchTimes.of(device)
    assert costs.known(plans[0]) == 1 and len(table.seconds) <= len(plans[0].step_launches)
    assert costs.known(plans[1]) == 1, "launches that run again are the same"
    assert 0 < costs.step(plans[0]) < 10


def test_times_of_a_busy_machine_are_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("one", (16,))
    network.add("dense", Dense(5))
    plan = make_plan(Request(network, 2, 2, SGD(0.1)), device)
    measured = [StepTiming([], 1.0, 4, noisy) for noisy in (4, 1)]
    monkeypatch.setattr(launches, "time_launches", lambda *arguments: measured)
    with pytest.raises(RunError, match="62%"):
        measure_launches([plan], device)
    assert not store.path_of(device).exists()


def test_damaged_costs_are_found_before_measuring(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    store.path_of(device).parent.mkdir()
    store.path_of(device).write_text("{")
    with pytest.raises(FormatError, match=re.escape(str(store.path_of(device)))):
        measure_launches([], device)


def test_what_steps_take_is_shared_among_launches_and_the_step():
    """3 us for each launch and 100 us for a step, and launches that take longer in one plan than in another."""
    launch = Launch("copy.cl", "copy", (), (16,), 1, (1,))

    def step(count: int, seconds: float, rest: float) -> StepTiming:
        return StepTiming([TimedLaunch(launch, 0.0, seconds, seconds)] * count, count * seconds + rest, 1)

    few, many = step(10, 2e-6, 130e-6), step(30, 4e-6, 190e-6)
    table = table_of([few, many])
    assert (table.between, table.fixed) == pytest.approx((3e-6, 100e-6))
    assert table.seconds == pytest.approx({key(launch): 3.5e-6}), "a mean over 40 places"
    assert table_of([step(10, 2e-6, -1e-6)]).fixed == 0, "the host's clock was ahead of the device's: nothing is left"
