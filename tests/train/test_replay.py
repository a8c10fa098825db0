"""Learning one example at a time beside kept ones: clusters of points, of which one class comes late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgelearn.errors import DataError, PlanError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, ReLU, Softmax
from edgelearn.train import Model

CENTRES = np.random.default_rng(7).normal(size=(4, 12)).astype(np.float32)


def points(classes: Any, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.asarray(classes, np.int32), n))
    return CENTRES[labels] + rng.normal(0, 0.7, (len(labels), 12)).astype(np.float32), labels


@pytest.fixture(scope="module")
def model() -> Model:
    net = Network("points", (12,))
    net.add("hidden", Dense(32))
    net.add("relu", ReLU())
    net.add("dense", Dense(4))
    net.add("softmax", Softmax())
    model = Model(net, seed=1).compile(SGD(0.05, momentum=0.9))
    model.fit(*points([0, 1, 2], 100, 1), epochs=5, verbose=0)
    net.freeze().unfreeze("dense")
    return model.compile(SGD(0.05, momentum=0.9))


def accuracy(learner, x, y) -> float:
    return float((learner.predict(x).argmax(-1) == y).mean())


def test_a_new_class_with_replay_and_without(model):
    old, new, late = points([0, 1, 2], 60, 2), points([3], 60, 3), points([3], 30, 4)
    before, forgotten = model.weights, {}
    for memory in ("4 kB", None):
        learner = model.replay(memory, batch_size=8)
        learner.remember(*points([0, 1, 2], 30, 5))
        first = accuracy(learner, *old)
        for x, y in zip(*late, strict=True):
            learner.learn(x[None], [y])
        forgotten[memory] = first - accuracy(learner, *old)
        assert accuracy(learner, *new) > 0.7
        assert learner.count == (4000 // 40 if memory else 0)
        assert learner.replay_bytes <= 4000
        sessions = learner.trainer.session.allocated_bytes + learner.plans["features"].peak_bytes
        assert learner.planned_bytes == sessions + learner.replay_bytes
        learner.close()
    assert forgotten["4 kB"] < 0.1 < forgotten[None]
    assert all(np.array_equal(model.weights[name], before[name]) for name in before)


def test_classes_share_a_full_memory(model):
    learner = model.replay(40 * 12)
    learner.remember(*points([0], 30, 1))
    for x, y in zip(*points([1, 2], 20, 2), strict=True):
        learner.learn(x[None], [y])
    assert np.bincount(learner.labels).tolist() == [4, 4, 4]
    learner.close()


def test_undo_is_exact_and_nothing_is_compiled(model, monkeypatch):
    learner, (x, y) = model.replay("1 kB", batch_size=6, updates=2), points([0, 1, 2, 3], 10, 1)
    learner.remember(x[:20], y[:20])
    learner.learn(x[20:21], y[20:21])
    weights, labels = learner.weights, learner.labels
    learner.predict(x)
    monkeypatch.setattr(type(learner.trainer.session.kernels), "_build", None)
    answers = []
    for _ in range(2):
        learner.learn(x[21:23], y[21:23])
        learner.learn(x[23:24], y[23:24])
        answers.append(learner.predict(x))
        learner.undo()
        learner.undo()
        assert all(np.array_equal(learner.weights[name], weights[name]) for name in weights)
        assert np.array_equal(learner.labels, labels)
    assert np.array_equal(*answers)
    learner.undo()
    with pytest.raises(PlanError, match="nothing to undo"):
        learner.undo()
    learner.close()


def test_all_layers_learn_from_kept_examples(model):
    network = model.network.copy().unfreeze()
    learner = Model(network, model.weights).compile(SGD(0.05)).replay("1 kB", batch_size=4)
    x, y = points([3], 5, 1)
    learner.learn(x[:1], y[:1])
    assert list(learner.plans) == ["update"] and learner.slots == 1000 // (12 + 8)
    assert not np.array_equal(learner.weights["hidden/kernel"], model.weights["hidden/kernel"])
    learner.close()


def test_what_cannot_be_learnt_says_so(model):
    with pytest.raises(PlanError, match="holds no example"):
        model.replay(30)
    with pytest.raises(PlanError, match="at least"):
        model.replay(batch_size=1)
    learner, (x, y) = model.replay(batch_size=4), points([0], 4, 1)
    for arguments, words in (((x[:1], [4]), "0 to 3"), ((x[:1], [0, 1]), "for each example"), ((x, y), "at most 2")):
        with pytest.raises(DataError, match=words):
            learner.learn(*arguments)
    learner.close()
