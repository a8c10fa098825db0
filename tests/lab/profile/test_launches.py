"""LaunchTimes of launches, measured for the planner."""

import re

import pytest

from edgelearn.compile import LaunchTimes, Request, make_plan
from edgelearn.compile.policies import checkpoints
from edgelearn.compile.search import launch_key
from edgelearn.errors import FormatError, RunError
from edgelearn.graph import Network
from edgelearn.lab.measure import Block
from edgelearn.lab.profile import roofline
from edgelearn.lab.profile.roofline import StepTiming, TimedLaunch, measure_launches, table_of
from edgelearn.launch import Launch
from edgelearn.ops import SGD, Conv2D, Dense, Flatten, ReLU
from edgelearn.runtime import choose_device
from edgelearn.tuned import store


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


def one_plan(monkeypatch, tmp_path, *attempts):
    """(plan, device) of a step whose times are `attempts`, one after another."""
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("one", (16,))
    network.add("dense", Dense(5))
    left = iter(attempts)
    monkeypatch.setattr(roofline, "time_launches", lambda *arguments: next(left))
    return make_plan(Request(network, 2, 2, SGD(0.1)), device), device


NOISY = [StepTiming([], 1.0, 4, noisy) for noisy in (4, 1)]
WIDE = [StepTiming([], 1.0, 4, 0, spread) for spread in (0.01, 0.42)]
QUIET = [StepTiming([], 1.0, 4, 1, 0.05)]


@pytest.mark.parametrize(("attempts", "figure"), [((WIDE, NOISY), "62%"), ((NOISY, WIDE), "42%")])
def test_times_of_a_busy_machine_are_not_kept(attempts, figure, monkeypatch, tmp_path):
    plan, device = one_plan(monkeypatch, tmp_path, *attempts)
    with pytest.raises(RunError, match=figure):
        measure_launches([plan], device)
    assert not store.path_of_times(device).exists()


@pytest.mark.parametrize("first", [NOISY, WIDE])
def test_disturbed_times_are_measured_again(first, monkeypatch, tmp_path):
    plan, device = one_plan(monkeypatch, tmp_path, first, QUIET)
    assert measure_launches([plan], device) == table_of(QUIET)
    assert store.path_of_times(device).exists()


def test_the_spread_of_a_step():
    blocks = [Block(seconds, 1, 0.0, 1, False) for seconds in (1.0, 2.0, 3.0, 4.0, 9.0)]
    launch = Launch("copy.cl", "copy", (), (16,), 1, (1,))
    timing = roofline._step_timing([[(launch, 0, 5)]] * 5, blocks)
    assert (timing.wall, timing.rounds, timing.noisy) == (3.0, 5, 0) and timing.spread == pytest.approx(2 / 3)


def test_damaged_costs_are_found_before_measuring(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    store.path_of_times(device).parent.mkdir()
    store.path_of_times(device).write_text("{")
    with pytest.raises(FormatError, match=re.escape(str(store.path_of_times(device)))):
        measure_launches([], device)


def test_what_steps_take_is_shared_among_launches_and_the_step():
    """3 us for each launch and 100 us for a step, and launches that take longer in one plan than in another."""
    launch = Launch("copy.cl", "copy", (), (16,), 1, (1,))

    def step(count: int, seconds: float, rest: float) -> StepTiming:
        return StepTiming([TimedLaunch(launch, 0.0, seconds, seconds)] * count, count * seconds + rest, 1)

    few, many = step(10, 2e-6, 130e-6), step(30, 4e-6, 190e-6)
    table = table_of([few, many])
    assert (table.between, table.fixed) == pytest.approx((3e-6, 100e-6))
    assert table.seconds == pytest.approx({launch_key(launch): 3.5e-6}), "a mean over 40 places"
    assert table_of([step(10, 2e-6, -1e-6)]).fixed == 0, "the host's clock was ahead of the device's: nothing is left"
