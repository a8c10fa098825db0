"""Matrix products: Conv2D with a 1x1 window, and Dense."""

import pytest

from edgelearn.ops import Conv2D, Dense, Traits

from .harness import SIZES
from .linear import check_linear


@pytest.mark.parametrize("channels", SIZES)
def test_channels_in(bench, rng, channels):
    check_linear(Conv2D(17, 1), bench, rng, (4, 5, channels))


@pytest.mark.parametrize("filters", SIZES)
def test_channels_out(bench, rng, filters):
    check_linear(Conv2D(filters, 1), bench, rng, (4, 5, 33))


@pytest.mark.parametrize("rows", SIZES)
def test_rows(bench, rng, rows):
    check_linear(Conv2D(33, 1), bench, rng, (1, rows, 18), n=1)


@pytest.mark.parametrize("rows", (257, 1000))
def test_rows_split_between_work_items(bench, rng, rows):
    check_linear(Conv2D(20, 1), bench, rng, (1, rows, 12), n=1)


def test_rows_in_chunks_that_fit_the_cache(bench, rng):
    """Weights that keep a device busy by themselves: rows go in chunks, each added to those before."""
    bench.traits = Traits(compute_units=1, vector_width=bench.traits.vector_width)
    check_linear(Conv2D(48, 1), bench, rng, (41, 39, 128), n=1)
    op, x, dy = Conv2D(48, 1), bench.empty((1, 41, 39, 128)), bench.empty((1, 41, 39, 48))
    op.emit_backward_weights(bench, x, dy, bench.empty((1, 128, 48)), None, add=False)
    assert [launch.kernel for launch in bench.launches] == ["pointwise_backward_weights"] * 2


@pytest.mark.parametrize("features", SIZES)
def test_dense_features(bench, rng, features):
    check_linear(Dense(10), bench, rng, (features,), n=7)


@pytest.mark.parametrize("units", SIZES)
def test_dense_units(bench, rng, units):
    check_linear(Dense(units), bench, rng, (50,), n=3)


@pytest.mark.parametrize("n", SIZES)
def test_dense_rows(bench, rng, n):
    check_linear(Dense(5), bench, rng, (40,), n=n)


@pytest.mark.parametrize("channels", (1, 3, 15))
def test_unpadded_input(bench, rng, channels):
    check_linear(Conv2D(20, 1), bench, rng, (8, 10, channels), block=channels)
