import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import Huber, MeanAbsoluteError, MeanSquaredError

from .harness import SIZES
from .losses import check_loss, check_reference

LOSSES = (MeanSquaredError(), MeanAbsoluteError(), Huber(), Huber(0.3))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("outputs", SIZES)
def test_outputs(bench, rng, loss, outputs):
    x, y = rng.standard_normal((2, 9, outputs)) * 2
    check_loss(bench, loss, x, y, 0, share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 4, 5, 3), (2, 3, 17), (33, 2)])
def test_shapes(bench, rng, loss, shape):
    check_loss(bench, loss, *rng.standard_normal((2, *shape)), 0)


def test_no_difference_has_no_slope(bench):
    check_loss(bench, MeanAbsoluteError(), np.array([[1.0, 2.0]]), np.array([[1.0, 0.5]]), 0)


@pytest.mark.parametrize("loss", LOSSES)
def test_reference(rng, loss):
    check_reference(loss, *rng.standard_normal((2, 3, 4)))


@pytest.mark.parametrize("delta", (0, -1, float("nan")))
def test_bad_delta(delta):
    with pytest.raises(PlanError):
        Huber(delta)
