import numpy as np
import pytest
from drawn_shapes import KINDS, draw_shape, pretraining_pictures

from edgelearn.data.flowers import KINDS as FLOWERS
from edgelearn.errors import DataError


@pytest.mark.parametrize("name", KINDS)
def test_pictures_are_repeatable_and_differ(name):
    first = draw_shape(name, 5, 0, 48)
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    assert (first == draw_shape(name, 5, 0, 48)).all()
    assert np.std(first.astype(float)) > 3
    for other in (draw_shape(name, 5, 1, 48), draw_shape(name, 6, 0, 48)):
        assert (first != other).mean() > 0.5


@pytest.mark.parametrize("name", list(KINDS)[::6])
def test_the_same_picture_at_any_size(name):
    small, large = (draw_shape(name, 1, 2, size).astype(float) for size in (48, 144))
    averaged = large.reshape(48, 3, 48, 3, 3).mean((1, 3))
    assert np.corrcoef(small.ravel(), averaged.ravel())[0, 1] > 0.9


def test_pretraining_has_many_classes_and_none_of_the_sample():
    dataset = pretraining_pictures(n_per_class=2)
    assert len(dataset) == 2 * len(dataset.class_names) >= 40
    assert not set(dataset.class_names) & set(FLOWERS)
    assert dataset.image(len(dataset) - 1, 32).shape == (32, 32, 3)


def test_at_least_one_picture():
    with pytest.raises(DataError, match=r"n_per_class=0"):
        pretraining_pictures(n_per_class=0)
