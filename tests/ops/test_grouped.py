import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Conv2D

from .linear import check_linear


@pytest.mark.parametrize(("groups", "channels", "filters"), [(2, 62, 66), (3, 3, 33), (31, 31, 62), (4, 64, 4)])
def test_borders_of_groups_between_blocks(bench, rng, groups, channels, filters):
    check_linear(Conv2D(filters, (3, 2), padding="same", groups=groups), bench, rng, (4, 5, channels))


def test_stride_and_dilation(bench, rng):
    op = Conv2D(10, 3, strides=(2, 1), padding=((1, 0), (2, 1)), dilation_rate=(1, 2), groups=5)
    check_linear(op, bench, rng, (7, 8, 15))


def test_one_pixel(bench, rng):
    check_linear(Conv2D(6, 1, groups=2), bench, rng, (1, 1, 4), n=1)


@pytest.mark.parametrize(("groups", "channels", "filters"), [(2, 3, 4), (2, 4, 3), (0, 4, 4), (-1, 4, 4)])
def test_groups_that_do_not_divide(groups, channels, filters):
    with pytest.raises(ShapeError, match="groups="):
        Conv2D(filters, 3, groups=groups).output_shape((8, 8, channels))
