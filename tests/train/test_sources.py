import numpy as np
import pytest

from edgelearn.ops.tensor import pack
from edgelearn.train import ArraySource, PictureSource, Subset


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
