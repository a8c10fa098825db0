import re
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.data.draws import FlipAndCrop, draws, epoch_order, stratified_split
from edgelearn.errors import DataError


def test_numbers_depend_on_seed_stream_epoch_and_index_alone():
    whole = draws(1, 2, 3, np.arange(1000), 4)
    assert whole.shape == (1000, 4) and whole.min() >= 0 and whole.max() < 1
    some = np.array([999, 0, 5, 0])
    np.testing.assert_array_equal(draws(1, 2, 3, some, 4), whole[some])
    np.testing.assert_array_equal(draws(1, 2, 3, np.arange(3), 4), whole[:3])
    assert draws(1, 2, 3, [], 4).shape == (0, 4)
    others = [draws(*which, np.arange(1000), 4) for which in ((9, 2, 3), (1, 9, 3), (1, 2, 9))]
    assert all((other != whole).all() for other in others)


TF_FLOWERS = (898, 633, 799, 699, 641)


def test_tf_flowers_split_into_2934_and_736():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), TF_FLOWERS))
    train, test = stratified_split(labels)
    assert (len(train), len(test)) == (2934, 736)
    assert np.bincount(labels[train]).tolist() == [718, 506, 639, 559, 512]


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_split_is_a_sorted_partition_with_floor_of_each_class(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    train, test = stratified_split(labels, 0.8, seed)
    assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert np.bincount(labels[train]).tolist() == [floor(count * 4 / 5) for count in counts]


def test_the_fraction_counts_as_written():
    assert len(stratified_split(np.zeros(100, int), 0.29)[0]) == 29  # 0.29 * 100 < 29 in binary


def test_the_seed_decides():
    labels = np.repeat([0, 1], 50)
    first, again, other = (stratified_split(labels, seed=seed)[0] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


def test_a_class_is_split_the_same_way_whatever_the_others_are():
    alone = stratified_split(np.zeros(20, int))[0]
    among = stratified_split(np.repeat([0, 1], [20, 9]))[0]
    assert among[among < 20].tolist() == alone.tolist()


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 80])
def test_fractions_out_of_range(fraction):
    with pytest.raises(DataError, match=re.escape(str(fraction))):
        stratified_split(np.zeros(10, int), fraction)


@pytest.mark.parametrize(
    ("labels", "fraction", "missing"),
    [([0, 0, 1], 0.8, "Class 1"), ([0] * 3, 0.1, "Class 0"), ([], 0.8, "no pictures")],
)
def test_too_few_pictures(labels, fraction, missing):
    with pytest.raises(DataError, match=missing):
        stratified_split(np.array(labels, int), fraction)


def test_epoch_order_depends_on_seed_and_epoch_only():
    order = epoch_order(50, 1, 2)
    assert sorted(order) == list(range(50))
    np.random.default_rng(0).random(10)
    assert (order == epoch_order(50, 1, 2)).all()
    assert (order != epoch_order(50, 1, 3)).any()
    assert (order != epoch_order(50, 2, 2)).any()


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
