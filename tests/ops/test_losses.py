"""Losses against float64: a table of losses, and what is right."""

import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CodewordHinge,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    MinimumEntropy,
    PositiveHinge,
    SoftmaxCrossEntropy,
)

from .harness import SIZES
from .losses import check_loss, check_reference

REGRESSION = (MeanSquaredError(), MeanAbsoluteError(), Huber(), Huber(0.3))
BINARY = (
    BinaryCrossentropy(), BinaryCrossentropy(0.2), BinaryFocalCrossentropy(), BinaryFocalCrossentropy(0.1, 1.5, 0.25),
    BinaryFocalCrossentropy(gamma=0.5), BinaryFocalCrossentropy(gamma=0),
)  # fmt: skip
CATEGORICAL = (
    CategoricalCrossentropy(), CategoricalCrossentropy(0.1), CategoricalFocalCrossentropy(),
    CategoricalFocalCrossentropy(0.2, 0.5, 1.0), CategoricalFocalCrossentropy(gamma=0),
)  # fmt: skip
HINGES = (CodewordHinge(), CodewordHinge(0.2), PositiveHinge(), PositiveHinge(0.1))
ALL = (*REGRESSION, *BINARY, *CATEGORICAL, *HINGES)


def draw(loss, rng, shape, soft=False):
    """(outputs, targets, right answers)"""
    x, count = rng.standard_normal(shape) * 3, shape[-1]
    if loss in BINARY:
        y = rng.uniform(size=shape) if soft else rng.integers(0, 2, shape).astype(float)
        return x, y, ((x > 0) == (y > 0.5)).mean(-1)
    if loss in CATEGORICAL:
        y = rng.uniform(size=shape) if soft else np.eye(count)[rng.integers(0, count, shape[:-1])]
        return x, y, x.argmax(-1) == y.argmax(-1)
    return x, rng.standard_normal(shape) * 2, np.zeros(shape[:-1])


@pytest.mark.parametrize("loss", ALL, ids=str)
@pytest.mark.parametrize("outputs", SIZES)
def test_weighted_rows(bench, rng, loss, outputs):
    if loss in HINGES and outputs == 1:
        return  # the cosine is -1 or 1, and the gradient 0
    x, y, right = draw(loss, rng, (9, outputs))
    check_loss(bench, loss, x, y, right.sum(), share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("loss", (*REGRESSION, *BINARY[:4], *CATEGORICAL), ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5, 6), (2, 3, 17), (33, 2)])
def test_soft_targets_of_pixels(bench, rng, loss, shape):
    x, y, right = draw(loss, rng, shape, soft=True)
    check_loss(bench, loss, x, y, right.sum() * len(x) / (x.size / shape[-1]))


@pytest.mark.parametrize("loss", HINGES, ids=str)
@pytest.mark.parametrize("shape", [(1, 127), (33, 20), (2, 511)])
def test_codewords(bench, rng, loss, shape):
    x, v = rng.standard_normal(shape), rng.choice([-1.0, 1.0], shape[1])
    check_loss(bench, loss, x, np.tile(v, (len(x), 1)), 0)


@pytest.mark.parametrize("loss", BINARY, ids=str)
def test_certain_outputs(bench, loss):
    """exp(300) is infinite, and the gradient of a certain right answer is 0."""
    x, y = np.array([[300.0, -300.0, 300.0, -300.0, 0.0]]), np.array([[1.0, 0.0, 0.0, 1.0, 1.0]])
    check_loss(bench, loss, x, y, 0.4)


@pytest.mark.parametrize("loss", CATEGORICAL, ids=str)
def test_certain_classes(bench, loss):
    x, y = np.array([[300.0, -300.0, 0.0], [300.0, -300.0, 0.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    check_loss(bench, loss, x, y, 1)


@pytest.mark.parametrize("loss", ALL, ids=str)
def test_gradients_of_references(rng, loss):
    x, y, _ = draw(loss, rng, (3, 4), soft=True)
    check_reference(loss, x, np.clip(y, 0.1, 0.9) if loss in BINARY else y)


def test_no_difference_has_no_slope(bench):
    check_loss(bench, MeanAbsoluteError(), np.array([[1.0, 2.0]]), np.array([[1.0, 0.5]]), 0)


def test_one_hot_is_the_loss_of_class_numbers(rng):
    x, labels = rng.standard_normal((5, 4)), rng.integers(0, 4, 5)
    own = CategoricalCrossentropy(0.1).reference(x, np.eye(4)[labels])
    for ours, theirs in zip(own, SoftmaxCrossEntropy(0.1).reference(x, labels), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_the_codeword_loss_as_published(rng):
    """max(0, 1 - v·s(y) / c), s scaling to the length √c."""
    y, v = rng.standard_normal((5, 127)), rng.choice([-1.0, 1.0], (5, 127))
    scaled = y / np.linalg.norm(y, axis=1, keepdims=True) * np.sqrt(127)
    losses, _ = CodewordHinge().reference(y, v)
    np.testing.assert_allclose(losses, np.maximum(0, 1 - (v * scaled).sum(1) / 127), rtol=1e-12)


@pytest.mark.parametrize("loss", HINGES, ids=str)
def test_lengths_do_not_matter(rng, loss):
    x, y = rng.standard_normal((2, 4, 7))
    np.testing.assert_allclose(loss.reference(9 * x, 0.1 * y)[0], loss.reference(x, y)[0], rtol=1e-9)


@pytest.mark.parametrize("loss", HINGES[1:], ids=str)
def test_beyond_the_margin_nothing_counts(bench, rng, loss):
    x = rng.standard_normal((3, 20))
    assert not loss.reference(x, 2 * x)[1].any()
    check_loss(bench, loss, x, 2 * x, 0)


@pytest.mark.parametrize("classes", SIZES)
def test_unlabelled_examples(bench, rng, classes):
    logits, labels = rng.standard_normal((11, classes)) * 3, rng.integers(-1, classes, 11)
    check_loss(bench, MinimumEntropy(0.3), logits, labels, (logits.argmax(-1) == labels).sum())
    n = classes
    check_loss(bench, MinimumEntropy(), rng.standard_normal((n, 5)), np.full(n, -1), 0, share=3)


def test_entropy_of_large_logits(bench, rng):
    logits, labels = 1e4 + rng.standard_normal((6, 20)) * 30, rng.integers(-1, 20, 6)
    check_loss(bench, MinimumEntropy(), logits, labels, (np.float32(logits).argmax(-1) == labels).sum())
    check_reference(MinimumEntropy(0.4), rng.standard_normal((4, 3)), np.array([-1, 2, -1, 0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Huber(0), lambda: Huber(-1), lambda: Huber(float("nan")), lambda: BinaryCrossentropy(1.0),
        lambda: BinaryCrossentropy(-0.1), lambda: BinaryFocalCrossentropy(gamma=-1),
        lambda: BinaryFocalCrossentropy(alpha=1.5), lambda: CategoricalCrossentropy(1.0),
        lambda: CategoricalFocalCrossentropy(gamma=-1), lambda: CategoricalFocalCrossentropy(alpha=-1),
        lambda: MinimumEntropy(-1), lambda: PositiveHinge(-1), lambda: PositiveHinge(1.5),
        lambda: PositiveHinge(float("nan")), lambda: CodewordHinge().check((4, 4, 16), 2),
    ],
)  # fmt: skip
def test_bad_settings(make):
    with pytest.raises(PlanError):
        make()
