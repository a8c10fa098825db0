"""Depthwise convolutions on integers."""

import pytest

from edgelearn.ops import DepthwiseConv2D
from edgelearn.ops import quantised_depthwise as family

from .integers import check_integers

FEW = (1, 3, 31, 32, 33, 65)


@pytest.mark.parametrize("channels", FEW)
def test_channels(bench, rng, channels):
    check_integers(DepthwiseConv2D(3, padding="same"), family, bench, rng, (6, 9, channels))


@pytest.mark.parametrize("width", FEW)
def test_widths(bench, rng, width):
    check_integers(DepthwiseConv2D(3, strides=2, padding="same"), family, bench, rng, (5, width, 17), n=1)
