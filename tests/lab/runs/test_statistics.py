import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from edgelearn.errors import DataError
from edgelearn.statistics import mean_and_deviation, median, wilson_interval


@given(st.integers(1, 5000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_agrees_with_scipy(n, share, confidence):
    successes = round(share * n)
    low, high = wilson_interval(successes, n, confidence)
    expected = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1


def test_wilson_of_the_published_result():
    assert wilson_interval(670, 736) == pytest.approx((0.8875, 0.9289), abs=1e-4)


def test_wilson_at_the_ends():
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1


@pytest.mark.parametrize("arguments", [(0, 0), (-1, 5), (6, 5), (1, 5, 0.0), (1, 5, 1.0), (1, 5, 95)])
def test_wilson_of_the_impossible(arguments):
    with pytest.raises(DataError):
        wilson_interval(*arguments)


def test_mean_deviation_median():
    values = np.random.default_rng(0).standard_normal(11)
    assert mean_and_deviation(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert mean_and_deviation([2, 4]) == pytest.approx((3, math.sqrt(2)))
    assert median([5, 1, 9]) == 5
    assert median([1, 2, 3, 10]) == 2.5
    mean, deviation = mean_and_deviation([4])
    assert mean == 4
    assert math.isnan(deviation)
    for function in (mean_and_deviation, median):
        with pytest.raises(DataError, match="at least one"):
            function([])
