"""Learning rates and weight decays of their own: against one update after the other in NumPy, and bit for bit where
factors are 1."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.ops import LAMB, SGD, Adam, AdamW, Lion, RMSprop

from .toys import examples, toy_network

RATES = {"stem*": 0.25, "*/beta": 2.0, "body/bias": 0.0}
DECAYS = {"*/gamma": 0.05, "dense": 0.2, "dense/bias": 0.0}
OPTIMIZERS = [SGD, Adam, AdamW, RMSprop, Lion, LAMB, lambda **settings: SGD(momentum=0.9, nesterov=True, **settings)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates_of_groups(kind):
    """Each parameter moves as the optimizer's rule says, with the factor and the decay of its group."""
    optimizer = kind(learning_rate=0.02, weight_decay=0.1, learning_rates=RATES, weight_decays=DECAYS)
    model = el.Model(toy_network(), seed=1).compile(optimizer, batchnorm="batch")
    x, y = examples(12)
    slots = {
        name: [np.zeros_like(model.weights[name], float) for _ in optimizer.slots] for name in model.network.trainable
    }
    for step in (1, 2):
        before, gradients = model.weights, model.gradients(x, y)
        model.train_on_batch(x, y)
        after = model.weights
        for name, gradient in gradients.items():
            layer, role = name.split("/")
            rate = 2 if role == "beta" else 0 if name == "body/bias" else 0.25 if layer.startswith("stem") else 1
            decay = {"gamma": 0.05, "kernel": 0.2 if layer == "dense" else 0.1}.get(role, 0)
            w = before[name].astype(float) * (1 - 0.02 * rate * decay)
            w, slots[name] = optimizer.reference_update(w, gradient.astype(float), slots[name], 0.02 * rate, step)
            np.testing.assert_allclose(after[name], w, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_factors_of_1_change_no_bit(kind):
    found = []
    for groups in ({}, {"learning_rates": {"*": 1}, "weight_decays": {"*/kernel": 0.1}}):
        model = el.Model(toy_network(), seed=1).compile(kind(weight_decay=0.1, **groups), batchnorm="batch")
        model.fit(*examples(20), batch_size=8, epochs=2)
        found.append(model.weights)
    assert all(np.array_equal(array, found[1][name]) for name, array in found[0].items())


def test_resumed_equals_uninterrupted(tmp_path):
    optimizer = Adam(0.01, learning_rates=RATES, weight_decays=DECAYS, use_ema=True, clipnorm=1.0)
    whole = el.Model(toy_network(), seed=1).compile(optimizer)
    whole.fit(*examples(20), batch_size=8, epochs=4)
    part = el.Model(toy_network(), seed=1).compile(optimizer)
    part.fit(*examples(20), batch_size=8, epochs=2)
    part.save(tmp_path / "part.safetensors")
    again = el.load(tmp_path / "part.safetensors", optimizer=optimizer)
    again.fit(*examples(20), batch_size=8, epochs=4)
    assert all(np.array_equal(array, again.weights[name]) for name, array in whole.weights.items())


def test_patterns_that_say_nothing():
    with pytest.raises(PlanError, match="No parameter matches 'stemm'"):
        el.Model(toy_network()).compile(SGD(learning_rates={"stemm": 0.1})).plan(4)
    for odd in ({"stem": -1}, {"stem": "a"}, ["stem"], {3: 1}):
        with pytest.raises(PlanError, match="learning_rates"):
            SGD(learning_rates=odd)
