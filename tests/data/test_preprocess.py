import numpy as np
import pytest

from edgelearn.data.pictures import normalize, standardize
from edgelearn.errors import ShapeError


def test_every_pixel_value():
    values = np.arange(256, dtype=np.uint8)
    result = normalize(values)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.arange(256) / 127.5 - 1, atol=1e-7)
    assert (result[0], result[255]) == (-1, 1)


def test_out_is_filled_and_returned():
    images = np.full((2, 3, 3, 3), 255, np.uint8)
    out = np.zeros(images.shape, np.float32)
    assert normalize(images, out=out) is out
    assert (out == 1).all()


@pytest.mark.parametrize("out", [np.zeros((2, 2), np.float32), np.zeros(3, np.float64)])
def test_out_must_fit(out):
    with pytest.raises(ShapeError, match=r"float32 .*\(3,\)"):
        normalize(np.zeros(3, np.uint8), out=out)


def test_pixels_must_be_uint8():
    with pytest.raises(ShapeError, match=r"uint8"):
        normalize(np.zeros(3))


def test_standardized_channels():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    mean, deviation = (pixels / 255).mean((0, 1, 2)), (pixels / 255).std((0, 1, 2))
    result = standardize(pixels, mean, deviation)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, (pixels / 255 - mean) / deviation, atol=1e-6)
    with pytest.raises(ShapeError, match=r"uint8"):
        standardize(pixels / 255, mean, deviation)
