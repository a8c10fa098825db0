import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Mean

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, channels):
    check_plain(Mean(), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("axis", (1, 2))
@pytest.mark.parametrize("size", SIZES)
def test_sizes(bench, rng, axis, size):
    check_plain(Mean(axis), bench, rng, (size, 3, 17), n=3)
    check_plain(Mean(axis), bench, rng, (3, size, 17), n=1)


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 4, 5)), (3, (3, 4, 5)), (1, (5,))])
def test_axes_that_there_are_not(axis, shape):
    with pytest.raises(ShapeError, match="GlobalAveragePooling2D"):
        Mean(axis).output_shape(shape)
