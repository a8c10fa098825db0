import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import PadChannels, SliceChannels

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_slices(bench, rng, channels):
    check_plain(SliceChannels(0, (channels + 1) // 2), bench, rng, (3, 4, channels))
    check_plain(SliceChannels(channels // 2, (channels + 1) // 2), bench, rng, (3, 4, channels))


@pytest.mark.parametrize("channels", SIZES)
def test_padding(bench, rng, channels):
    check_plain(PadChannels(5, 17), bench, rng, (3, 4, channels))
    check_plain(PadChannels(after=channels), bench, rng, (channels,))


@pytest.mark.parametrize("op", (SliceChannels(-1, 2), SliceChannels(3, 3), SliceChannels(0, 0), PadChannels(-1, 3)))
def test_impossible(op):
    with pytest.raises(ShapeError):
        op.output_shape((4, 5, 5))
