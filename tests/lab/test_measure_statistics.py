"""Ratios of times measured in the same rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelearn.statistics import compare

times = st.lists(st.tuples(st.floats(1e-4, 10), st.floats(1e-4, 10)), min_size=1, max_size=20)


def test_the_ratio_is_of_times():
    found = compare([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0])
    assert found.ratio == pytest.approx(0.5) and found.low == pytest.approx(0.5) and found.high == pytest.approx(0.5)
    assert found.refusal is None and str(found) == "0.50 (0.50 – 0.50)"


def test_disturbances_that_hit_both_sides_of_a_round_drop_out():
    load = np.array([1, 5, 1, 3, 1, 8])
    found = compare(0.010 * load, 0.012 * load)
    assert found.refusal is None and found.ratio == pytest.approx(1 / 1.2)


def test_a_spread_larger_than_the_difference_is_refused():
    found = compare([1.0, 1.0, 1.0, 1.0, 1.0], [0.8, 0.9, 1.05, 1.2, 1.3])
    assert str(found) == found.refusal == "spread too large"


def test_medians_that_contradict_the_rounds_are_refused():
    # Twice as fast in every round but the last, and yet the same median.
    found = compare([1.0, 2.0, 4.0, 8.0, 16.0], [2.0, 4.0, 8.0, 16.0, 4.0])
    assert found.low == pytest.approx(0.5) and found.high == pytest.approx(0.5)
    assert found.refusal == "spread too large"


def test_no_difference_at_all_is_refused():
    assert compare([1.0] * 5, [1.0] * 5).refusal == "spread too large"


def test_the_same_spread_is_allowed_at_a_larger_difference():
    peer = np.array([0.8, 0.9, 1.05, 1.2, 1.3])
    assert compare([1.0] * 5, peer).refusal and compare([1.0] * 5, 3 * peer).refusal is None


@pytest.mark.parametrize("rounds", [1, 2])
def test_too_few_rounds_are_refused(rounds):
    assert compare([1.0] * rounds, [9.0] * rounds).refusal == "too few rounds"


def test_uneven_rounds_are_an_error():
    with pytest.raises(ValueError, match="got"):
        compare([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="got"):
        compare([], [])


@given(times)
def test_a_shown_ratio_has_quartiles_on_one_side_of_1_and_around_it(pairs):
    mine, theirs = zip(*pairs, strict=True)
    found = compare(mine, theirs)
    assert found.low <= found.ratio <= found.high
    if found.refusal is None:
        faster = found.low <= 1 and found.high <= 1
        slower = found.low >= 1 and found.high >= 1
        assert faster or slower


def test_swapping_sides_changes_no_verdict():
    random = np.random.default_rng(0)
    verdicts = []
    for _ in range(100):
        mine, theirs = random.lognormal(0, 0.3, 7), random.lognormal(random.normal(), 0.3, 7)
        found, swapped = compare(mine, theirs), compare(theirs, mine)
        assert found.refusal == swapped.refusal
        assert found.ratio == pytest.approx(1 / swapped.ratio) and found.low == pytest.approx(1 / swapped.high)
        verdicts.append(found.refusal is None)
    assert 20 < sum(verdicts) < 80
