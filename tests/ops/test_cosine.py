import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import CodewordHinge, PositiveHinge

from .harness import SIZES
from .losses import check_loss, check_reference

LOSSES = (CodewordHinge(), CodewordHinge(0.2), PositiveHinge(), PositiveHinge(0.1))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("outputs", SIZES[1:])  # of one output, the cosine is -1 or 1, and the gradient 0
def test_outputs(bench, rng, loss, outputs):
    x, y = rng.standard_normal((2, 9, outputs)) * 2
    check_loss(bench, loss, x, y, 0, share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(1, 127), (33, 20), (2, 511)])
def test_shapes(bench, rng, loss, shape):
    x, v = rng.standard_normal(shape), rng.choice([-1.0, 1.0], shape[1])
    check_loss(bench, loss, x, np.tile(v, (len(x), 1)), 0)


def test_the_codeword_loss_as_published(rng):
    """max(0, 1 - v·s(y) / c), s scaling to the length √c."""
    y, v = rng.standard_normal((5, 127)), rng.choice([-1.0, 1.0], (5, 127))
    scaled = y / np.linalg.norm(y, axis=1, keepdims=True) * np.sqrt(127)
    losses, _ = CodewordHinge().reference(y, v)
    np.testing.assert_allclose(losses, np.maximum(0, 1 - (v * scaled).sum(1) / 127), rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_lengths_do_not_matter(rng, loss):
    x, y = rng.standard_normal((2, 4, 7))
    np.testing.assert_allclose(loss.reference(9 * x, 0.1 * y)[0], loss.reference(x, y)[0], rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_beyond_the_margin_nothing_counts(bench, rng, loss):
    x = rng.standard_normal((3, 20))
    assert not loss.reference(x, 2 * x)[1].any()
    check_loss(bench, loss, x, 2 * x, 0)


@pytest.mark.parametrize("loss", LOSSES)
def test_reference(rng, loss):
    check_reference(loss, *rng.standard_normal((2, 3, 4)))


@pytest.mark.parametrize("margin", (-1, 1.5, float("nan")))
def test_bad_margin(margin):
    with pytest.raises(PlanError):
        PositiveHinge(margin)


def test_outputs_of_pixels_are_refused():
    with pytest.raises(PlanError, match="Flatten"):
        CodewordHinge().check((4, 4, 16), 2)
