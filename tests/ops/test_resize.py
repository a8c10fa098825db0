import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import AdaptiveAveragePooling2D, Resize, UpSampling2D
from edgelearn.ops.resize import COORDINATES, INTERPOLATIONS, ROUNDINGS

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_channels(bench, rng, interpolation, channels):
    check_plain(Resize((7, 3), interpolation), bench, rng, (4, 5, channels))


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(9, 3), (1, 17), (8, 2)])
def test_sizes(bench, rng, size, interpolation, coordinates):
    check_plain(Resize(size, interpolation, coordinates), bench, rng, (4, 5, 3), n=3)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings(bench, rng, rounding):
    check_plain(Resize((6, 6), "nearest", "half_pixel", rounding), bench, rng, (4, 3, 17))


def test_scales_of_their_own(bench, rng):
    check_plain(Resize((6, 8), "bilinear", scale=(1.6, 1.7)), bench, rng, (4, 5, 3))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_up_sampling(bench, rng, interpolation):
    check_plain(UpSampling2D((3, 2), interpolation), bench, rng, (4, 5, 33))


@pytest.mark.parametrize("size", [(2, 3), (4, 5), (7, 1)])
def test_adaptive_pooling(bench, rng, size):
    check_plain(AdaptiveAveragePooling2D(size), bench, rng, (4, 5, 33))


ONE_ROW = {  # four pixels 0, 1, 2, 3 as eight, as three, and as two
    ("nearest", "half_pixel", "round_prefer_ceil"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 3], [1, 3]),  # tf.image.resize
    ("nearest", "half_pixel", "round_prefer_floor"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 3], [0, 2]),
    ("nearest", "asymmetric", "floor"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2], [0, 2]),  # torch
    ("nearest", "align_corners", "round_prefer_ceil"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 3], [0, 3]),
    ("bilinear", "half_pixel", "floor"): ([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3], [1 / 6, 1.5, 17 / 6], [0.5, 2.5]),
    ("bilinear", "asymmetric", "floor"): ([0, 0.5, 1, 1.5, 2, 2.5, 3, 3], [0, 4 / 3, 8 / 3], [0, 2]),
    ("bilinear", "align_corners", "floor"): (list(np.arange(8) * 3 / 7), [0, 1.5, 3], [0, 3]),
}


@pytest.mark.parametrize("convention", ONE_ROW, ids=" ".join)
def test_conventions(convention):
    x = np.arange(4.0).reshape(1, 1, 4, 1)
    for expected in ONE_ROW[convention]:
        y = Resize((1, len(expected)), *convention).reference_forward([x], {})
        assert y.ravel().tolist() == pytest.approx(expected)


def test_nearest_keeps_formats():
    assert Resize(3, "nearest").selects and UpSampling2D().selects and not Resize(3).selects


@pytest.mark.parametrize(
    ("op", "shape"),
    [(Resize(3, "cubic"), (4, 4, 1)), (Resize(3, coordinates="centre"), (4, 4, 1)), (Resize(0), (4, 4, 1)),
     (Resize(3, rounding="up"), (4, 4, 1)), (Resize(3, scale=0.0), (4, 4, 1)), (Resize(3), (4, 1)),
     (UpSampling2D(0), (4, 4, 1)), (UpSampling2D(), (4,)), (AdaptiveAveragePooling2D(0), (4, 4, 1))],
)  # fmt: skip
def test_arguments_that_do_not_fit(op, shape):
    with pytest.raises(ShapeError):
        op.output_shape(shape)
