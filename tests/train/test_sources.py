import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SoftmaxCrossEntropy
from edgelearn.train import PictureSource, Subset, VariedSource
from edgelearn.train.sources import as_source, as_targets, at_epoch, varies


@pytest.fixture
def pictures():
    return np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)


def test_every_source_gives_the_same_examples(pictures):
    floats = pictures / np.float32(128) - 1
    asked = []

    def load(indices, size):
        asked.append((list(indices), size))
        return pictures[indices]

    source = PictureSource(5, 4, load, lambda p: p / np.float32(128) - 1)
    chosen = np.array([4, 1])
    np.testing.assert_array_equal(source[chosen], floats[chosen])
    assert asked == [([4, 1], 4)]
    subset = Subset(Subset(source, np.array([0, 4, 2, 1])), np.array([3, 1]))  # 1, 4
    np.testing.assert_array_equal(subset[np.array([1, 0])], floats[chosen])
    assert len(source) == 5 and len(subset) == 2
    assert source.shape == floats.shape and subset.shape == (2, 4, 4, 3)


def test_a_varied_source_shows_each_epoch_what_it_says(pictures):
    def vary(images, indices, epoch):
        return images + np.uint8(epoch) + indices[:, None, None, None].astype(np.uint8)

    source = VariedSource(pictures, vary, np.float32)
    chosen = np.array([3, 0])
    for examples, numbers in (source, chosen), (Subset(source, np.array([0, 3])), np.array([1, 0])):
        assert varies(examples) and examples.shape == (len(examples), 4, 4, 3)
        for epoch in (2, 0, 7):
            expected = np.float32(vary(pictures[chosen], chosen, epoch))
            np.testing.assert_array_equal(at_epoch(examples, epoch)[numbers], expected)


def test_what_does_not_vary_is_the_same_in_every_epoch(pictures):
    assert at_epoch(pictures, 3) is pictures and not varies(pictures)
    subset = Subset(pictures, np.array([4]))
    assert not varies(subset)
    np.testing.assert_array_equal(at_epoch(subset, 3)[np.array([0])], pictures[4:])


def test_arrays_and_lists_are_sources(pictures):
    network = Network("n", (4, 4, 3))
    assert as_source(pictures, network) is pictures
    np.testing.assert_array_equal(as_source(pictures.tolist(), network)[np.array([2])], pictures[2:3])


def test_targets_are_told_apart():
    loss = SoftmaxCrossEntropy()
    labels = as_targets([2, 0], 2, (3,), loss)
    assert labels.tolist() == [2, 0] and labels.dtype == np.int32
    one_hot = np.eye(3)[[2, 0]]
    for rows in (one_hot, one_hot.astype(int), one_hot.astype(bool)):
        with pytest.raises(ShapeError, match=r"SoftmaxCrossEntropy.*one-hot.*argmax"):
            as_targets(rows, 2, (3,), loss)
    for targets in (np.array([2.0, 0.0]), np.array([[0.3, 0.7], [0.5, 0.5]])):
        with pytest.raises(ShapeError, match=r"SoftmaxCrossEntropy.*float64"):
            as_targets(targets, 2, (3,), loss)
    with pytest.raises(ShapeError, match="0 to 2; found 0 to 3"):
        as_targets([3, 0], 2, (3,), loss)
