"""NaN and infinity: found, named, and kept out of the weights."""

import numpy as np
import pytest

from edgelearn.errors import DataError, NonFiniteError
from edgelearn.ops import SGD, Adam
from edgelearn.train import Model

from .toys import Log, examples, frozen_stem, same, toy_network


class Keep(Log):
    """The weights after each step."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_batch_end(self, batch, logs):
        self.kept.append(self.model.state()[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data(value):
    x, y = examples(12)
    x[9, 2, 3, 1] = value
    model = Model(toy_network()).compile(SGD(0.1, momentum=0.9))
    before = model.weights
    with pytest.raises(NonFiniteError, match=r"Epoch 1, step 1: example 9"):
        model.fit(x, y, 12, micro_batch=5)
    assert same(model.weights, before)
    assert model.position.updates == 0
    assert model.context.ledger.held == 0


@pytest.mark.parametrize("cache", ["fp32", "fp16"])
def test_data_under_a_cache(cache):
    x, y = examples(20)
    x[17, 2, 3, 1] = np.nan
    model = Model(frozen_stem()).compile(SGD(0.1))
    with pytest.raises(NonFiniteError, match="of example 17"):
        model.fit(x, y, 12, cache=cache)


def test_a_huge_learning_rate():
    x, y = examples(12)
    model = Model(toy_network(ceiling=None)).compile(SGD(1e30))
    keep = Keep()
    with pytest.raises(NonFiniteError, match=r"step \d+: .* first in layer '\w+' .*1e\+30"):
        model.fit(x, y, 6, 5, callbacks=[keep])
    assert keep.kept
    last = {name.removeprefix("weights/"): array for name, array in keep.kept[-1].items()}
    assert same({name: model.weights[name] for name in last}, last)
    assert all(np.isfinite(array).all() for array in model.weights.values())


@pytest.mark.parametrize(
    ("name", "value", "layer"),
    [("body/kernel", 3e38, "body"), ("stem_bn/gamma", 3e38, "stem"), ("dense/kernel", 3e38, "dense")],
)
def test_an_overflow_in_the_forward_pass_names_its_layer(name, value, layer):
    x, y = examples(12)
    net = toy_network(ceiling=None)
    model = Model(net, net.initialize(0) | {name: np.full(net.parameters[name].weight.shape, value)})
    model.compile(Adam(0.01))
    before = model.weights
    with pytest.raises(NonFiniteError, match=f"first in layer '{layer}' \\(.*output"):
        model.fit(np.abs(x) * 10, y, 12, micro_batch=5)
    assert same(model.weights, before)


def test_an_overflow_in_the_backward_pass_names_its_layer():
    """Examples so small that nothing overflows on the way up."""
    x, y = examples(12)
    net = toy_network(ceiling=None)
    weights = net.initialize(0)
    weights["dense/kernel"] = np.sign(weights["dense/kernel"]) * np.float32(1e38)
    weights["body/kernel"] *= np.float32(1e5)
    model = Model(net, weights).compile(SGD(1e-30))
    before = model.weights
    with pytest.raises(NonFiniteError, match=r"first in layer 'body' \(.*, stem/output gradient\)"):
        model.fit(x * np.float32(1e-30), y, 12)
    assert same(model.weights, before)


def test_batch_statistics_stay_too():
    x, y = examples(12)
    x[9, 2, 3, 1] = np.nan
    model = Model(toy_network()).compile(SGD(0.1), batchnorm="batch")
    before = model.weights
    with pytest.raises(NonFiniteError):
        model.fit(x, y, 12, micro_batch=5)
    assert same(model.weights, before)


def test_a_feature_too_large_for_fp16():
    x, y = examples(12)
    model = Model(frozen_stem(ceiling=None)).compile(SGD(1e-12))
    with pytest.raises(DataError, match="fp16"):
        model.fit(x * 1e6, y, 12, cache="fp16")
    model.fit(x * 1e6, y, 12, cache="fp32")
