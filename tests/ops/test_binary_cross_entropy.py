import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import BinaryCrossentropy, BinaryFocalCrossentropy

from .harness import SIZES
from .losses import check_loss, check_reference

LOSSES = (
    BinaryCrossentropy(), BinaryCrossentropy(0.2), BinaryFocalCrossentropy(), BinaryFocalCrossentropy(0.1, 1.5, 0.25),
    BinaryFocalCrossentropy(gamma=0.5), BinaryFocalCrossentropy(gamma=0),
)  # fmt: skip


def right(x, y):
    return ((x > 0) == (y > 0.5)).mean(-1).sum()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("labels", SIZES)
def test_labels(bench, rng, loss, labels):
    x, y = rng.standard_normal((9, labels)) * 3, rng.integers(0, 2, (9, labels)).astype(float)
    check_loss(bench, loss, x, y, right(x, y), share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("loss", LOSSES[:4])
def test_soft_targets_of_pixels(bench, rng, loss):
    x, y = rng.standard_normal((2, 3, 5, 2)), rng.uniform(size=(2, 3, 5, 2))
    check_loss(bench, loss, x, y, right(x, y).sum() / 15)


@pytest.mark.parametrize("loss", LOSSES)
def test_certain_outputs(bench, loss):
    """exp(300) is infinite, and the gradient of a certain right answer is 0."""
    x, y = np.array([[300.0, -300.0, 300.0, -300.0, 0.0]]), np.array([[1.0, 0.0, 0.0, 1.0, 1.0]])
    check_loss(bench, loss, x, y, 0.4)


@pytest.mark.parametrize("loss", LOSSES)
def test_reference(rng, loss):
    check_reference(loss, rng.standard_normal((3, 4)), rng.uniform(0.1, 0.9, (3, 4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: BinaryCrossentropy(1.0),
        lambda: BinaryCrossentropy(-0.1),
        lambda: BinaryFocalCrossentropy(gamma=-1),
        lambda: BinaryFocalCrossentropy(alpha=1.5),
    ],
)
def test_bad_settings(make):
    with pytest.raises(PlanError):
        make()
