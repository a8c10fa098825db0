"""Convolutions, pointwise ones and dense layers on integers."""

import pytest

from edgelearn.ops import Conv2D, Dense
from edgelearn.ops import quantised_convolution as family

from .harness import SIZES
from .integers import check_integers

FEW = (1, 3, 31, 32, 33, 65)


@pytest.mark.parametrize("channels", FEW)
def test_channels_in(bench, rng, channels):
    check_integers(Conv2D(17, 3, padding="same"), family, bench, rng, (5, 7, channels))


@pytest.mark.parametrize("filters", FEW)
def test_channels_out(bench, rng, filters):
    check_integers(Conv2D(filters, 3, strides=2, padding="same"), family, bench, rng, (6, 9, 5))


@pytest.mark.parametrize("rows", SIZES)
def test_pointwise_rows(bench, rng, rows):
    check_integers(Conv2D(33, 1), family, bench, rng, (1, rows, 18), n=1)


@pytest.mark.parametrize("n", (1, 7, 33))
def test_dense(bench, rng, n):
    check_integers(Dense(10), family, bench, rng, (65,), n=n)


@pytest.mark.parametrize("channels", (1, 3))
def test_unpadded_input(bench, rng, channels):
    op = Conv2D(20, 3, strides=2, padding=((0, 1), (0, 1)))
    check_integers(op, family, bench, rng, (8, 10, channels), block=channels)
