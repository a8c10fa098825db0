import numpy as np
import pytest

from edgelearn.experiments.verification.networks import picture_network
from edgelearn.experiments.verification.report import report, true_positive_rate
from edgelearn.experiments.verification.tasks import synthetic


def test_true_positive_rate():
    impostors = np.arange(100) / 100  # ten of them are at or above 0.9
    assert true_positive_rate(np.array([0.5, 0.9, 0.95, 0.99]), impostors) == 0.75
    assert true_positive_rate(np.array([0.5, 0.9]), impostors, 0.6) == 1.0


def test_report():
    scores, owners = np.array([[0.9, 0.1], [0.8, 0.3], [0.2, 0.1], [0.4, 0.7]]), np.array([0, 0, 1, 1])
    found = report(scores, owners, np.array([[0.95, 0.0]]))
    assert found.accuracy == 0.75 and found.seen == 0.75
    assert found.unseen == 0.0  # the threshold must be above 0.95
    rates = found.curves["seen"]
    assert rates[0][0] == 0 and rates[0][-1] == rates[1][-1] == 1 and (np.diff(rates[0]) >= 0).all()
    assert np.isnan(report(scores, owners, np.empty((0, 2))).unseen)


def test_nobody_is_in_two_parts(monkeypatch):
    task = synthetic(seed=3)
    assert len(task.train) == 9 and {len(x) for x in task.test} == {6} and {len(x) for x in task.train} == {18}
    rows = [x.reshape(len(x), -1) for x in (*task.train, *task.test, task.unseen)]
    everything = np.concatenate(rows)
    assert len(np.unique(everything, axis=0)) == len(everything)


@pytest.mark.parametrize("outputs", (127, 10))
def test_the_network_of_pictures(outputs):
    assert picture_network(outputs).output.shape == (outputs,)
