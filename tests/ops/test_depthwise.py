import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import DepthwiseConv2D

from .harness import SIZES
from .linear import check_geometry, check_linear


@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, channels):
    check_linear(DepthwiseConv2D(3, padding="same"), bench, rng, (6, 9, channels))


@pytest.mark.parametrize("width", SIZES)
def test_widths(bench, rng, width):
    check_linear(DepthwiseConv2D(3, strides=2, padding="same"), bench, rng, (5, width, 17), n=1)


@pytest.mark.parametrize(("channels", "multiplier"), [(1, 17), (5, 3), (16, 2), (33, 2)])
def test_depth_multipliers(bench, rng, channels, multiplier):
    op = DepthwiseConv2D(3, (2, 1), "same", depth_multiplier=multiplier)
    check_linear(op, bench, rng, (6, 5, channels))


@pytest.mark.parametrize("height", (1, 2, 14, 33))
def test_heights_in_bands(bench, rng, height):
    """On CPUs a work-item slides over a band of rows; the last band is shorter."""
    check_linear(DepthwiseConv2D(3, padding="same"), bench, rng, (height, 9, 3), n=1)


def test_mobilenet_halving(bench, rng):
    check_linear(DepthwiseConv2D(3, strides=2, padding=((0, 1), (0, 1))), bench, rng, (14, 14, 32))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_geometry(kernels, data):
    shape = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20)))
    check_geometry(lambda **window: DepthwiseConv2D(**window, use_bias=False), kernels, shape, data)


def test_reference_knows_a_case_by_hand():
    x = np.arange(9.0).reshape(1, 3, 3, 1)
    kernel = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(2, 2, 1, 1)
    op = DepthwiseConv2D(2, use_bias=False)
    assert op.reference_forward([x], {"kernel": kernel})[0, :, :, 0].tolist() == [[27, 37], [57, 67]]
    (dx,), gradients = op.reference_backward([x], {"kernel": kernel}, np.ones((1, 2, 2, 1)))
    assert dx[0, :, :, 0].tolist() == [[1, 3, 2], [4, 10, 6], [3, 7, 4]]
    assert gradients["kernel"][:, :, 0, 0].tolist() == [[8, 12], [20, 24]]


def test_window_larger_than_the_image():
    with pytest.raises(ShapeError):
        DepthwiseConv2D(5).output_shape((4, 9, 3))
