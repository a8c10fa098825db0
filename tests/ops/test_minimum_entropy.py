import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import MinimumEntropy

from .harness import SIZES
from .losses import check_loss, check_reference


def right(logits, labels):
    return (logits.argmax(-1) == labels).sum()


@pytest.mark.parametrize("classes", SIZES)
def test_labelled_and_unlabelled(bench, rng, classes):
    logits, labels = rng.standard_normal((11, classes)) * 3, rng.integers(-1, classes, 11)
    check_loss(bench, MinimumEntropy(0.3), logits, labels, right(logits, labels))


@pytest.mark.parametrize("n", SIZES)
def test_unlabelled_alone(bench, rng, n):
    check_loss(bench, MinimumEntropy(), rng.standard_normal((n, 5)), np.full(n, -1), 0, share=3)


def test_large_logits(bench, rng):
    logits, labels = 1e4 + rng.standard_normal((6, 20)) * 30, rng.integers(-1, 20, 6)
    check_loss(bench, MinimumEntropy(), logits, labels, right(np.float32(logits), labels))


def test_reference(rng):
    check_reference(MinimumEntropy(0.4), rng.standard_normal((4, 3)), np.array([-1, 2, -1, 0]))


def test_bad_weight():
    with pytest.raises(PlanError):
        MinimumEntropy(-1)
