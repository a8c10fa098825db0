import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.ops import Conv2D

from .harness import SIZES
from .linear import check_geometry, check_linear, check_long_sums


@pytest.mark.parametrize("channels", SIZES)
def test_channels_in(bench, rng, channels):
    check_linear(Conv2D(17, 3, padding="same"), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("filters", SIZES)
def test_channels_out(bench, rng, filters):
    check_linear(Conv2D(filters, 3, strides=2, padding="same"), bench, rng, (6, 9, 5))


@pytest.mark.parametrize("width", SIZES)
def test_widths(bench, rng, width):
    check_linear(Conv2D(16, (2, 3), strides=(1, 2), padding="same"), bench, rng, (3, width, 4), n=1)


@pytest.mark.parametrize("groups", (2, 3, 6))
def test_groups(bench, rng, groups):
    check_linear(Conv2D(18, 3, padding="same", groups=groups), bench, rng, (5, 6, 12))


@pytest.mark.parametrize("channels", (1, 3, 15))
def test_unpadded_input(bench, rng, channels):
    check_linear(Conv2D(20, 3, strides=2, padding=((0, 1), (0, 1))), bench, rng, (8, 10, channels), block=channels)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_geometry(kernels, data):
    shape = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20)))
    filters = data.draw(st.integers(1, 40))
    check_geometry(lambda **window: Conv2D(filters, **window, use_bias=False), kernels, shape, data)


def test_long_sums_keep_their_digits(bench, rng):
    check_long_sums(bench, rng, 2, 16)
