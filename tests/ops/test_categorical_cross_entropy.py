import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import CategoricalCrossentropy, CategoricalFocalCrossentropy, SoftmaxCrossEntropy

from .harness import SIZES
from .losses import check_loss, check_reference

LOSSES = (
    CategoricalCrossentropy(), CategoricalCrossentropy(0.1), CategoricalFocalCrossentropy(),
    CategoricalFocalCrossentropy(0.2, 0.5, 1.0), CategoricalFocalCrossentropy(gamma=0),
)  # fmt: skip


def right(x, y):
    return (x.argmax(-1) == y.argmax(-1)).sum()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("classes", SIZES)
def test_one_hot(bench, rng, loss, classes):
    x, y = rng.standard_normal((9, classes)) * 3, np.eye(classes)[rng.integers(0, classes, 9)]
    check_loss(bench, loss, x, y, right(x, y), share=2, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5, 6), (2, 3, 17)])
def test_soft(bench, rng, loss, shape):
    x, y = rng.standard_normal(shape), rng.uniform(size=shape)
    check_loss(bench, loss, x, y, right(x, y) * len(x) / (x.size / shape[-1]))


@pytest.mark.parametrize("loss", LOSSES)
def test_certain_outputs(bench, loss):
    x, y = np.array([[300.0, -300.0, 0.0], [300.0, -300.0, 0.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    check_loss(bench, loss, x, y, 1)


def test_one_hot_is_the_loss_of_class_numbers(rng):
    x, labels = rng.standard_normal((5, 4)), rng.integers(0, 4, 5)
    for ours, theirs in zip(
        CategoricalCrossentropy(0.1).reference(x, np.eye(4)[labels]),
        SoftmaxCrossEntropy(0.1).reference(x, labels),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_reference(rng, loss):
    check_reference(loss, rng.standard_normal((3, 4)), rng.uniform(size=(3, 4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CategoricalCrossentropy(1.0),
        lambda: CategoricalFocalCrossentropy(gamma=-1),
        lambda: CategoricalFocalCrossentropy(alpha=-1),
    ],
)
def test_bad_settings(make):
    with pytest.raises(PlanError):
        make()
