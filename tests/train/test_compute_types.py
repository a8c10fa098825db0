"""Models that train in halves; the loss scale of fp16."""

import numpy as np
import pytest

from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.ops import SGD, Compute
from edgelearn.train import Model
from edgelearn.train.state import GROWTH, Position

from .toys import examples, same, toy_network

FP16 = Compute("fp16", plain=True)


@pytest.fixture
def trainer():
    with compiled().trainer(batch_size=8) as trainer:
        yield trainer


def compiled() -> Model:
    return Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9), batchnorm="batch", compute=FP16)


def test_an_overflow_is_no_update_and_halves_the_scale(trainer):
    x, y = examples(8)
    before = trainer.weights
    trainer.position.loss_scale = 2.0**40
    trainer.step(x, y)
    assert (trainer.position.updates, trainer.position.loss_scale) == (0, 2.0**39)
    assert same(trainer.weights, before)
    while trainer.position.updates < 1:
        trainer.step(x, y)
    assert trainer.position.scaled == 1
    assert not same(trainer.weights, before)


def test_the_scale_does_not_change_what_is_learned(trainer):
    """It is a power of two, so that gradients have the same bits unless halves lose them."""
    x, y = examples(8)
    found = []
    for scale in (2.0**12, 2.0**13):
        trainer.position.loss_scale = scale
        found.append(trainer.gradients(x, y))
    for name, gradient in found[0].items():
        assert np.abs(gradient - found[1][name]).max() <= 1e-3 * np.abs(gradient).max() + 1e-7


def test_a_resumed_training_has_the_same_bits(trainer):
    x, y = examples(8)
    trainer.position.loss_scale, trainer.position.scaled = 2.0**30, GROWTH - 2
    for _ in range(3):
        trainer.step(x, y)
    state = trainer.state()
    for _ in range(12):
        trainer.step(x, y)
    with compiled().trainer(batch_size=8) as other:
        other.restore(*state)
        for _ in range(12):
            other.step(x, y)
        assert other.position == trainer.position
        assert same(other.weights, trainer.weights)


def test_the_scale_doubles_and_lasts():
    at = Position()
    for _ in range(GROWTH):
        at.scale_loss(finite=True)
    assert (at.loss_scale, at.scaled) == (131072.0, 0)
    assert at.next_epoch().loss_scale == at.loss_scale


def test_an_overflow_that_no_scale_prevents_is_an_error(trainer):
    x, y = examples(8)
    with pytest.raises(NonFiniteError):
        trainer.step(x * 1e6, y)


def test_halves_learn(tmp_path):
    x, y = examples(16)
    model = compiled()
    losses = model.fit(x, y, batch_size=8, epochs=6).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert model.predict(x).dtype == np.float32


def test_no_units():
    model = Model(toy_network())
    kinds = [kind for kind in ("bf16", "tf32") if kind not in model.device.units and "MMA" not in model.device.units]
    for kind in kinds:
        with pytest.raises(PlanError, match="plain=True"):
            model.compile(SGD(0.1), compute=kind).plan(batch_size=4)
    with pytest.raises(PlanError, match="cache"):
        model.compile(SGD(0.1), compute=FP16).plan(batch_size=4, cache="fp32")
