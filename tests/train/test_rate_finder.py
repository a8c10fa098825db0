"""The learning-rate finder: its losses are those of training at its rates, and the model stays as it was."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError

from .toys import examples, toy_network


@pytest.fixture
def model():
    model = el.Model(toy_network(), seed=1).compile(el.SGD(0.05, momentum=0.9))
    model.fit(*examples(40), batch_size=8)
    return model


def test_its_losses_are_those_of_a_training(model):
    x, y = examples(40)
    curve = el.find_learning_rate(model, x, y, least=1e-3, most=0.1, steps=5, batch_size=40)
    other = el.Model(model.network, model.weights, seed=1).compile(el.SGD(momentum=0.9), batchnorm=model.batchnorm)
    losses = []
    for rate in np.geomspace(1e-3, 0.1, 5):
        other.learning_rate = float(rate)
        losses.append(other.train_on_batch(x, y)["loss"])
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-4)


def test_the_model_stays_as_it_was(model):
    before, state = model.weights, model.state()
    curve = el.find_learning_rate(model, *examples(40), most=1e6, steps=40, batch_size=8)
    assert len(curve.rates) < 40  # it diverged
    assert all(np.array_equal(array, model.weights[name]) for name, array in before.items())
    tensors, position = model.state()
    assert position == state[1]
    assert all(np.array_equal(array, tensors[name]) for name, array in state[0].items())
    again = el.find_learning_rate(model, *examples(40), most=1e6, steps=40, batch_size=8)
    assert np.array_equal(curve.losses, again.losses)


def test_it_shows_itself(model):
    curve = el.find_learning_rate(model, *examples(40), steps=6, batch_size=8)
    assert "<svg" in curve._repr_html_()
    assert "falls most steeply" in str(curve)
    assert len(str(curve).splitlines()) == len(curve.rates) + 2
    assert curve.to_dict()["rates"][0] == pytest.approx(1e-6)


def test_rates_that_do_not_rise(model):
    with pytest.raises(PlanError, match="rise from least to most"):
        el.find_learning_rate(model, *examples(4), least=1, most=0.1)


def test_precision_by_name():
    model = el.Model(toy_network()).compile(el.SGD(0.05), precision="int8")
    assert model.precision == el.compile.precision.named_precision("int8")
    assert np.isfinite(model.fit(*examples(20), batch_size=8).history["loss"]).all()
