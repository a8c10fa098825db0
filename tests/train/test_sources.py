import numpy as np
import pytest

from edgelearn.ops.tensor import pack
from edgelearn.train import ArraySource, PictureSource, Subset, VariedSource
from edgelearn.train.sources import at_epoch, varies


@pytest.fixture
def pictures():
    return np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)


@pytest.mark.parametrize("block", [3, 16])
def test_every_source_gives_the_same_words(pictures, block):
    floats = pictures / np.float32(128) - 1
    asked = []

    def load(indices, size):
        asked.append((list(indices), size))
        return pictures[indices]

    source = PictureSource(5, 4, load, lambda p: p / np.float32(128) - 1)
    chosen = np.array([4, 1])
    expected = pack(floats[chosen], block)
    np.testing.assert_array_equal(ArraySource(floats).packed(chosen, block), expected)
    np.testing.assert_array_equal(source.packed(chosen, block), expected)
    assert asked == [([4, 1], 4)]
    subset = Subset(Subset(source, np.array([0, 4, 2, 1])), np.array([3, 1]))  # 1, 4
    np.testing.assert_array_equal(subset.packed(np.array([1, 0]), block), expected)
    assert len(source) == 5 and len(subset) == 2
    assert source.shape == subset.shape == ArraySource(floats).shape == (4, 4, 3)


def test_a_varied_source_shows_each_epoch_what_it_says(pictures):
    def vary(images, indices, epoch):
        return images + np.uint8(epoch) + indices[:, None, None, None].astype(np.uint8)

    source = VariedSource(pictures, vary, np.float32)
    chosen = np.array([3, 0])
    for found, numbers in (source, chosen), (Subset(source, np.array([0, 3])), np.array([1, 0])):
        assert varies(found) and len(found) in (5, 2) and found.shape == (4, 4, 3)
        for epoch in (2, 0, 7):
            expected = pack(np.float32(vary(pictures[chosen], chosen, epoch)), 16)
            np.testing.assert_array_equal(at_epoch(found, epoch).packed(numbers, 16), expected)


def test_what_does_not_vary_is_the_same_in_every_epoch(pictures):
    source = ArraySource(pictures)
    assert at_epoch(source, 3) is source and not varies(source)
    subset = Subset(source, np.array([4]))
    assert not varies(subset)
    one = np.array([0])
    np.testing.assert_array_equal(at_epoch(subset, 3).packed(one, 3), subset.packed(one, 3))
