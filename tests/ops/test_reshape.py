import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Flatten, Reshape

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_flatten(bench, rng, channels):
    check_plain(Flatten(), bench, rng, (2, 3, channels))


@pytest.mark.parametrize("channels", SIZES)
def test_reshape(bench, rng, channels):
    check_plain(Reshape((3, channels, 2)), bench, rng, (2, 3, channels))


def test_flatten_vector(bench, rng):
    check_plain(Flatten(), bench, rng, (33,))


def test_reshape_vector_to_image(bench, rng):
    check_plain(Reshape((4, -1, 9)), bench, rng, (72,), n=3)


def test_target_shapes():
    assert Reshape((-1, 2)).output_shape((3, 4)) == (6, 2)
    for target in ((), (5, -1), (-1, -1), (0, -1), (3, 5), (-2, 6)):
        with pytest.raises(ShapeError, match="12 values"):
            Reshape(target).output_shape((3, 4))
