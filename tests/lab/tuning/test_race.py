"""Races between candidates, with times as given."""

import numpy as np
import pytest

from edgelearn.lab.tuning import Race, settle
from edgelearn.launch import Decision

RNG = np.random.default_rng(0)


def race(name: str = "pointwise_forward 1x2x3", *times: list[float], rows: tuple[int, ...] = (14, 12, 8, 7)) -> Race:
    """A race in which candidate i took times[i]."""
    candidates = tuple({"rows": r} for r in rows)
    race = Race(Decision(name, candidates, candidates[0]))
    for number, samples in enumerate(times):
        for sample in samples:
            race.add(number, sample)
    return race


def test_every_candidate_comes_up():
    race_ = race()
    race_.cut(None, RNG)
    assert sorted(race_.entrant(turn) for turn in range(4)) == [0, 1, 2, 3]
    assert [race_.entrant(turn) for turn in range(4)] == [race_.entrant(turn) for turn in range(4, 8)]


def test_the_slow_drop_out_and_the_safe_one_stays():
    race_ = race("a", [9.0], [3.0], [5.0], [4.0])
    race_.cut(2, RNG)
    assert sorted(race_.running) == [0, 1, 3]
    race_.cut(1, RNG)
    assert sorted(race_.running) == [0, 1]


@pytest.mark.parametrize(
    ("times", "winners"),
    [
        (([100, 100, 100], [80, 80, 80], [81, 81, 81]), [1, 2]),
        (([100, 100, 100], [81, 81, 81], [80, 80, 80]), [2, 1]),
        (([100, 100, 100], [98.5, 98.5, 98.5]), [0]),  # not worth another kernel
        (([80, 100, 120], [70, 90, 110]), [0]),  # within the spread
        (([100, 100, 100], [80, 80]), [0]),  # measured too seldom
        (([100, 100], [80, 80, 80]), [0]),
        (([100, 100, 100],), [0]),
        (([], [80, 80, 80]), [0]),
    ],
)
def test_winners(times, winners):
    assert race("a", *times).winners() == winners


def test_equals_share_a_kernel():
    """The larger of two decisions takes its fastest candidate, and the other one the same where it is as good."""
    large = race("pointwise_forward 9x9x9", [100] * 3, [90] * 3, [80] * 3)
    small = race("pointwise_forward 3x3x3", [10] * 3, [8.0] * 3, [8.1] * 3)
    other = race("pointwise_backward_data 3x3x3", [10] * 3, [8.0] * 3, [8.1] * 3)
    far = race("pointwise_forward 2x2x2", [10] * 3, [5.0] * 3, [8.1] * 3)
    assert settle([small, other, far, large]) == {
        "pointwise_forward 9x9x9": {"rows": 8},
        "pointwise_forward 3x3x3": {"rows": 8},
        "pointwise_backward_data 3x3x3": {"rows": 12},
        "pointwise_forward 2x2x2": {"rows": 12},
    }


def test_a_race_that_never_ran_settles_nothing():
    assert settle([race("a")]) == {}
