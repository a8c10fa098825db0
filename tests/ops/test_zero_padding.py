import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import ZeroPadding2D

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, channels):
    check_plain(ZeroPadding2D(((0, 1), (2, 3))), bench, rng, (3, 4, channels))


@pytest.mark.parametrize("width", SIZES)
def test_widths(bench, rng, width):
    check_plain(ZeroPadding2D((2, 1)), bench, rng, (2, width, 3))


def test_sides():
    assert ZeroPadding2D(2).output_shape((3, 4, 5)) == (7, 8, 5)
    assert ZeroPadding2D((1, 2)).output_shape((3, 4, 5)) == (5, 8, 5)
    assert ZeroPadding2D(((1, 2), (3, 4))).output_shape((3, 4, 5)) == (6, 11, 5)


@pytest.mark.parametrize(("padding", "shape"), [(1, (3,)), (((0, -1), (0, 0)), (3, 4, 5))])
def test_impossible(padding, shape):
    with pytest.raises(ShapeError):
        ZeroPadding2D(padding).output_shape(shape)
