from math import cos, pi

import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import SGD
from edgelearn.train import CosineDecay, ExponentialDecay, Model, PiecewiseConstantDecay
from edgelearn.train.schedules import rate_at

from .toys import examples, same, toy_network


@pytest.mark.parametrize("step", [0, 1, 9, 10, 25])
def test_exponential(step):
    assert ExponentialDecay(0.3, 10, 0.5)(step) == pytest.approx(0.3 * 0.5 ** (step / 10))
    assert ExponentialDecay(0.3, 10, 0.5, staircase=True)(step) == pytest.approx(0.3 * 0.5 ** (step // 10))


def test_cosine():
    schedule = CosineDecay(0.4, 8, alpha=0.1)
    assert [schedule(step) for step in range(9)] == pytest.approx(
        [0.4 * (0.1 + 0.9 * (1 + cos(pi * step / 8)) / 2) for step in range(9)]
    )
    assert schedule(0) == 0.4
    assert schedule(8) == schedule(100) == pytest.approx(0.04)


def test_cosine_with_warmup():
    schedule = CosineDecay(0.4, 8, warmup_steps=4)
    assert [schedule(step) for step in range(5)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [schedule(step + 4) for step in range(9)] == [CosineDecay(0.4, 8)(step) for step in range(9)]


def test_piecewise_constant():
    schedule = PiecewiseConstantDecay((2, 5), (1.0, 0.5, 0.1))
    assert [schedule(step) for step in range(8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1]  # as Keras: boundaries included


@pytest.mark.parametrize(("boundaries", "values"), [((2, 5), (1, 2)), ((5, 2), (1, 2, 3)), ((), ())])
def test_piecewise_constant_refuses(boundaries, values):
    with pytest.raises(PlanError, match="boundaries"):
        PiecewiseConstantDecay(boundaries, values)


@pytest.mark.parametrize("schedule", [ExponentialDecay, CosineDecay])
def test_nothing_decays_in_no_steps(schedule):
    with pytest.raises(PlanError, match="not 0"):
        schedule(0.1, 0, 0.5)


def test_a_number_is_a_rate():
    assert rate_at(1, 5) == 1.0 and isinstance(rate_at(1, 5), float)
    assert rate_at(lambda step: step / 10, 3) == 0.3


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
def test_rates_that_cannot_be(rate):
    with pytest.raises(PlanError, match=f"update 4 has {float(rate)}"):
        rate_at(rate, 3)


def test_every_update_has_its_rate():
    """A schedule that is 0 but for one update changes the weights by that update alone."""
    x, y = examples(10)
    once = Model(toy_network()).compile(SGD(PiecewiseConstantDecay((2, 3), (0.0, 0.1, 0.0))), batchnorm="moving")
    once.fit(x, y, 4, 2, shuffle=False)  # updates 0 to 5
    first = Model(toy_network()).compile(SGD(0.1), batchnorm="moving")
    first.fit(x[:4], y[:4], 4, 1, shuffle=False)  # update 3 is the first of the second epoch
    assert same(once.weights, first.weights)
