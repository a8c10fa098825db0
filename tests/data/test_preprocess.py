import numpy as np
import pytest

from edgelearn.data.preprocess import normalize
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
    with pytest.raises(ShapeError, match=r"out must be float32 of shape"):
        normalize(np.zeros(3, np.uint8), out=out)


def test_pixels_must_be_uint8():
    with pytest.raises(ShapeError, match=r"uint8"):
        normalize(np.zeros(3))
