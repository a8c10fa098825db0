"""Depthwise convolutions on integers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.ops import DepthwiseConv2D, Traits, quantized

from .integers import FORMATS, check_every_choice, check_geometry, check_integers, check_stochastic

FEW = (1, 17, 65)


@pytest.mark.parametrize("channels", FEW)
def test_channels(bench, rng, channels):
    check_integers(DepthwiseConv2D(3, padding="same"), bench, rng, (6, 9, channels))


@pytest.mark.parametrize("width", FEW)
def test_widths(bench, rng, width):
    check_integers(DepthwiseConv2D(3, strides=2, padding="same"), bench, rng, (5, width, 17), n=1)


@pytest.mark.parametrize("name", FORMATS)
def test_formats(bench, rng, name):
    check_integers(DepthwiseConv2D((2, 3), padding="same"), bench, rng, (3, 9, 20), formats=FORMATS[name])


@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_geometry(kernels, data):
    shape = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20)))
    check_geometry(DepthwiseConv2D, kernels, shape, data)


def test_stochastic_rounding(bench, rng):
    op = DepthwiseConv2D(3, strides=2, padding="same", use_bias=False)
    check_stochastic(op, bench, rng, (5, 6, 17))


@pytest.mark.parametrize("exact", (quantized.EXACT, 0))
def test_without_a_unit(bench, rng, monkeypatch, exact):
    """Sums are floats, or integers where floats don't hold them."""
    monkeypatch.setattr(quantized, "EXACT", exact)
    bench.traits = replace(bench.traits, find_units=tuple)
    check_integers(DepthwiseConv2D(3, strides=2, padding="same"), bench, rng, (5, 6, 17))


def test_another_unit_gives_the_same_integers(bench, rng):
    if "AVX512BW" not in bench.context.device.units:
        pytest.skip("the device hasn't this unit")
    bench.traits = replace(bench.traits, find_units=lambda: ("AVX512BW",))
    check_integers(DepthwiseConv2D((2, 3), strides=3, padding=((0, 1), (2, 1))), bench, rng, (5, 8, 17))


def test_taps_that_reach_over_several_quads(bench, rng):
    op = DepthwiseConv2D((2, 5), dilation_rate=2, padding=((1, 0), (3, 2)))
    check_integers(op, bench, rng, (4, 8, 18))


def test_as_gpus_do(bench, rng):
    """Members of a work-group put together what they find."""
    bench.traits = Traits(gpu=True, compute_units=1)
    check_integers(DepthwiseConv2D(3, strides=2, padding="same"), bench, rng, (9, 10, 20))


def test_every_choice(bench, rng):
    tried = check_every_choice(DepthwiseConv2D(3, padding="same"), bench, rng, (3, 7, 16))
    assert len(tried["quantized_depthwise_forward"]) > 3
