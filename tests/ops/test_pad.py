import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Pad

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("value", (0, -1.5))
@pytest.mark.parametrize("channels", SIZES)
def test_constant(bench, rng, channels, value):
    check_plain(Pad(((1, 0), (2, 3), (5, 0)), value=value), bench, rng, (3, 4, channels))
    check_plain(Pad(((1, 2), (0, 1), (0, 16)), value=value), bench, rng, (3, 4, channels))


@pytest.mark.parametrize("mode", ("edge", "reflect", "symmetric"))
@pytest.mark.parametrize("channels", SIZES)
def test_mirrored(bench, rng, mode, channels):
    check_plain(Pad(((2, 1), (0, 3), (0, 0)), mode), bench, rng, (3, 4, channels))


@pytest.mark.parametrize("mode", ("edge", "reflect", "symmetric"))
def test_mirrored_channels(bench, rng, mode):
    check_plain(Pad(((0, 1), (4, 15)), mode), bench, rng, (2, 17))


def test_only_a_value_adds_numbers():
    assert Pad(((1, 1),)).selects and Pad(((1, 1),), "reflect").selects
    assert not Pad(((1, 1),), value=0.5).selects


@pytest.mark.parametrize(
    "op", [Pad(((1, 1),)), Pad(((0, -1), (0, 0))), Pad(((3, 0), (0, 0)), "reflect"), Pad(((0, 4), (0, 0)), "symmetric"),
           Pad(((1, 1), (1, 1)), "wrap")],
)  # fmt: skip
def test_padding_that_does_not_fit(op):
    with pytest.raises(ShapeError):
        op.output_shape((3, 5))
