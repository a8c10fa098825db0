"""Intervals, ratios of times measured in the same rounds, and the confusion matrix."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from edgelearn.errors import DataError, ShapeError
from edgelearn.statistics import compare, confusion_matrix, mean_and_deviation, median, wilson_interval


@given(st.integers(1, 5000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_agrees_with_scipy(n, share, confidence):
    successes = round(share * n)
    low, high = wilson_interval(successes, n, confidence)
    expected = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1


def test_wilson_of_the_published_result_and_at_the_ends():
    assert wilson_interval(670, 736) == pytest.approx((0.8875, 0.9289), abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0 and wilson_interval(10, 10)[1] == 1


@pytest.mark.parametrize("arguments", [(0, 0), (-1, 5), (6, 5), (1, 5, 0.0), (1, 5, 1.0), (1, 5, 95)])
def test_wilson_of_the_impossible(arguments):
    with pytest.raises(DataError):
        wilson_interval(*arguments)


def test_mean_deviation_median():
    values = np.random.default_rng(0).standard_normal(11)
    assert mean_and_deviation(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert mean_and_deviation([2, 4]) == pytest.approx((3, math.sqrt(2)))
    assert median([5, 1, 9]) == 5 and median([1, 2, 3, 10]) == 2.5
    mean, deviation = mean_and_deviation([4])
    assert mean == 4 and math.isnan(deviation)
    for function in (mean_and_deviation, median):
        with pytest.raises(DataError, match="at least one"):
            function([])


def test_confusion_matrix():
    found = confusion_matrix([0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 0, 2], 3)
    np.testing.assert_array_equal(found, [[1, 1, 0], [0, 1, 0], [1, 0, 2]])
    assert confusion_matrix([], [], 2).tolist() == [[0, 0], [0, 0]]
    small = confusion_matrix(np.array([15], np.uint8), np.array([19], np.uint8), 20)
    assert small.dtype == np.int64 and small[15, 19] == 1


@pytest.mark.parametrize(
    ("true", "predicted", "what"),
    [
        ([0, 1], [0], "equally long"), ([[0]], [[0]], "equally long"), ([0.0], [0], "integers"),
        ([0], [3], "predicted classes must lie from 0 to 2"), ([-1], [0], "true classes must lie from 0 to 2"),
    ],
)  # fmt: skip
def test_confusion_matrix_of_bad_input(true, predicted, what):
    with pytest.raises(ShapeError, match=what):
        confusion_matrix(true, predicted, 3)


# -- ratios ------------------------------------------------------------------------------------------------------------

LOAD, PEER = np.array([1, 5, 1, 3, 1, 8]), np.array([0.8, 0.9, 1.05, 1.2, 1.3])


@pytest.mark.parametrize(
    ("mine", "theirs", "ratio"),
    [
        ([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0], 0.5),
        (0.010 * LOAD, 0.012 * LOAD, 1 / 1.2),  # disturbances that hit both sides of a round drop out
        ([1.0] * 5, PEER, "spread too large"),  # than the difference is
        ([1.0] * 5, 3 * PEER, 1 / 3.15),  # the same spread at a larger difference
        ([1.0, 2.0, 4.0, 8.0, 16.0], [2.0, 4.0, 8.0, 16.0, 4.0], "spread too large"),  # medians contradict rounds
        ([1.0] * 5, [1.0] * 5, "spread too large"),
        ([1.0], [9.0], "too few rounds"), ([1.0] * 2, [9.0] * 2, "too few rounds"),
    ],
)  # fmt: skip
def test_ratios(mine, theirs, ratio):
    found = compare(mine, theirs)
    if isinstance(ratio, str):
        assert str(found) == found.refusal == ratio
    else:
        assert found.refusal is None and found.ratio == pytest.approx(ratio)
        assert str(found) == f"{found.ratio:.2f} ({found.low:.2f} – {found.high:.2f})"


def test_uneven_rounds_are_an_error():
    for sides in (([1.0, 2.0], [1.0]), ([], [])):
        with pytest.raises(ValueError, match="got"):
            compare(*sides)


@given(st.lists(st.tuples(st.floats(1e-4, 10), st.floats(1e-4, 10)), min_size=1, max_size=20))
def test_a_shown_ratio_has_quartiles_on_one_side_of_1_and_around_it(pairs):
    mine, theirs = zip(*pairs, strict=True)
    found = compare(mine, theirs)
    assert found.low <= found.ratio <= found.high
    assert found.refusal or max(found.low, found.high) <= 1 or min(found.low, found.high) >= 1


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
