"""Features of the frozen prefix, kept while a training is stopped."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.ops import Dense, ReLU, Softmax
from edgelearn.train import Callback


class Log(Callback):
    """Counts extracted examples, and stops after an epoch."""

    def __init__(self, last: int = 100) -> None:
        self.extracted, self.last = 0, last

    def on_extract(self, done: int, total: int) -> None:
        self.extracted = done

    def on_epoch_end(self, epoch: int, logs) -> None:
        self.model.stop_training = epoch + 1 >= self.last


@pytest.fixture
def model():
    network = el.Network("two", (6,))
    network.add("frozen", Dense(20))
    network.add("relu", ReLU())
    network.add("head", Dense(3))
    network.add("softmax", Softmax())
    network.freeze().unfreeze("head")
    return el.Model(network, seed=3).compile(el.SGD(0.1, momentum=0.9))


rng = np.random.default_rng(0)
X, Y = rng.standard_normal((10, 6)).astype(np.float32), rng.integers(0, 3, 10)


def fit(model, epochs, log, x=X):
    model.fit(x, Y, 4, epochs, cache="fp32", callbacks=[log], verbose=0)
    return log.extracted


def test_a_stopped_training_extracts_nothing_again(model):
    whole = el.Model(model.network, model.weights, seed=3).compile(el.SGD(0.1, momentum=0.9))
    assert fit(whole, 4, Log()) == 10
    assert fit(model, 4, Log(last=2)) == 10
    assert fit(model, 4, Log()) == 0
    assert all((model.weights[name] == array).all() for name, array in whole.weights.items())
    assert fit(model, 5, Log()) == 10, "a training that has ended keeps nothing"


def test_examples_that_were_edited_have_other_features(model):
    x = X.copy()
    fit(model, 9, Log(last=1), x)
    x[0] += 1
    assert fit(model, 9, Log(last=2), x) == 10


def test_other_examples_or_weights_have_other_features(model):
    fit(model, 9, Log(last=1))
    assert fit(model, 9, Log(last=2), X.copy()) == 10
    model.weights = model.weights | {"frozen/bias": np.ones(20, np.float32)}
    assert fit(model, 9, Log(last=3)) == 10


def test_the_prefix_follows_outputs_and_layers(model):
    assert model.phases(4, cache="fp32")["extract"].request.network.outputs == ("relu",)
    model.network.outputs = ("relu", "softmax")
    with pytest.raises(el.errors.PlanError, match="no frozen prefix"):
        model.phases(4, cache="fp32")
    model.network.outputs = ("softmax",)
    model.network.add("last", ReLU())
    model.network.outputs = ("last",)
    assert list(model.phases(4, cache="fp32")["train"].request.network.nodes) == ["head", "softmax", "last"]
