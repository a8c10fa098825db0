import numpy as np
import pytest
from scipy import stats

from edgelearn.errors import DataError
from edgelearn.experiments.keywords import accuracy, auroc, det_curve, equal_error_rate, open_set
from edgelearn.statistics import interval, student_t


def scores(seed, known=37, unknown=53, steps=None):
    """Overlapping scores, with ties when rounded to `steps`."""
    rng = np.random.default_rng(seed)
    pair = rng.normal(1, 1, known), rng.normal(0, 1, unknown)
    return tuple(np.round(values * steps) / steps for values in pair) if steps else pair


@pytest.mark.parametrize("steps", [None, 2])
def test_auroc_is_mann_whitneys_u(steps):
    known, unknown = scores(0, steps=steps)
    expected = stats.mannwhitneyu(known, unknown).statistic / (len(known) * len(unknown))
    assert auroc(known, unknown) == pytest.approx(expected, abs=1e-12)
    assert auroc([2, 3], [0, 1]) == 1 and auroc([0], [1]) == 0 and auroc([1], [1]) == 0.5


@pytest.mark.parametrize("steps", [None, 2])
def test_det_curve_counts_errors_at_every_threshold(steps):
    known, unknown = scores(1, steps=steps)
    thresholds, accepted, rejected = det_curve(known, unknown)
    assert len(thresholds) == len(set(known) | set(unknown)) + 1
    np.testing.assert_allclose(accepted, [(unknown >= t).mean() for t in thresholds], atol=1e-12)
    np.testing.assert_allclose(rejected, [(known < t).mean() for t in thresholds], atol=1e-12)
    assert (accepted[0], rejected[0], accepted[-1], rejected[-1]) == (1, 0, 0, 1)


def test_equal_error_rate():
    assert equal_error_rate([2, 3], [0, 1]) == 0
    assert equal_error_rate([0], [1]) == 1
    assert equal_error_rate([0, 2, 2, 2], [1, 1, 1, 3]) == pytest.approx(0.25)
    many = scores(2, 200_000, 200_000)
    assert equal_error_rate(*many) == pytest.approx(stats.norm.cdf(-0.5), abs=3e-3)


def test_open_set():
    labels = np.array([0, 1, 2, 0, 1])
    predicted = np.array([0, 1, 1, 0, 2])
    known, unknown = np.array([5, 4, 3, 0.5, 2.5]), np.arange(20) / 10
    found = open_set(predicted, labels, known, unknown, 0.05)
    assert found.accuracy == accuracy(predicted, labels) == 0.6
    assert found.threshold == 1.9 and found.false_accepts == 0.05
    assert found.false_rejects == 0.2 and found.accepted_accuracy == 0.4
    strict = open_set(predicted, labels, known, unknown, 0.0)
    assert strict.threshold == 2.5 and strict.false_accepts == 0
    none = open_set(predicted, labels, known, [9.0], 0.0)
    assert none.false_rejects == 1 and none.accepted_accuracy == 0


@pytest.mark.parametrize("degrees", [1, 2, 5, 30, 599])
def test_students_t(degrees):
    for confidence in (0.5, 0.95, 0.99):
        assert student_t(confidence, degrees) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-5)


def test_interval():
    values = np.random.default_rng(0).normal(0.9, 0.05, 12)
    found = interval(values)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert found.mean - found.margin == pytest.approx(low) and found.mean + found.margin == pytest.approx(high)
    assert str(found).startswith("0.9") and found.count == 12
    for wrong in ([0.5], [0.5, np.nan]):
        with pytest.raises(DataError, match=r"0.5"):
            interval(wrong)
    for pair in (([], [1]), ([1], []), ([np.nan], [1])):
        with pytest.raises(DataError):
            auroc(*pair)
