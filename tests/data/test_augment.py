import numpy as np
import pytest

from edgelearn.data.draws import FlipAndCrop


@pytest.fixture
def pictures():
    """No pixel is black or like another one of its picture."""
    base = np.arange(1, 1 + 9 * 8 * 3, dtype=np.uint8).reshape(1, 9, 8, 3)
    return np.repeat(base, 600, 0)


def shifted(picture, down, right):
    """The picture moved, black coming in, pixel by pixel."""
    found = np.zeros_like(picture)
    height, width, _ = picture.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                found[y, x] = picture[y - down, x - right]
    return found


def test_every_picture_is_mirrored_or_not_and_shifted(pictures):
    varied = FlipAndCrop(seed=5, padding=2)(pictures, np.arange(600), epoch=1)
    assert varied.shape == pictures.shape and varied.dtype == np.uint8
    reach = range(-2, 3)
    cases = {
        shifted(picture, down, right).tobytes(): (flip, down, right)
        for flip, picture in enumerate((pictures[0], pictures[0][:, ::-1]))
        for down in reach
        for right in reach
    }
    counts = np.unique([cases[picture.tobytes()] for picture in varied], axis=0, return_counts=True)[1]
    assert len(counts) == 2 * 5 * 5
    assert ((counts - 12) ** 2 / 12).sum() < 85  # chi square of 49 degrees of freedom, 0.1 %


def test_the_choices_depend_on_seed_epoch_and_number_alone(pictures):
    vary = FlipAndCrop(seed=5)
    whole = vary(pictures, np.arange(600), 3)
    some = np.array([577, 0, 300, 0])
    np.testing.assert_array_equal(FlipAndCrop(seed=5)(pictures[some], some, 3), whole[some])
    few = np.arange(3)
    np.testing.assert_array_equal(vary(pictures[few], few, 3), whole[few])
    for other in FlipAndCrop(seed=6)(pictures, np.arange(600), 3), vary(pictures, np.arange(600), 4):
        assert 0.9 < (other != whole).any((1, 2, 3)).mean() < 1  # one in 162 is the same by chance


def test_no_pictures(pictures):
    assert FlipAndCrop(seed=5)(pictures[:0], np.arange(0), 0).shape == (0, 9, 8, 3)
