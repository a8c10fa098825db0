import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.ops import Conv2D, finish

from .harness import SIZES, close
from .linear import check_geometry, check_linear


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
    """All of one sign, as behind a ReLU: rounding errors do not cancel."""
    op = Conv2D(2, 3, padding="same", use_bias=False)
    x = np.float64(np.float32(rng.uniform(0, 1, (16, 112, 112, 2))))
    _, gradients = op.reference_backward([x], {"kernel": np.zeros((3, 3, 2, 2))}, x)
    tx, tg = bench.put(x), bench.empty((9, 2, 2))
    finish.emit_sum(bench, op.emit_backward_weights(bench, tx, tx, tg, None, add=False)[0])
    bench.run()
    close(bench.get(tg), gradients["kernel"].reshape(9, 2, 2), 1e-5)
