"""The thicket: a sample on which bits, observers, trained layers and numbers of examples differ, in the right order."""

import numpy as np
import pytest

from edgelearn.data.flowers import draw_hidden, split_thicket, thicket_flowers
from edgelearn.errors import DataError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.federated import FederatedConfig, FederatedExperiment
from edgelearn.experiments.flowers import FlowersConfig
from edgelearn.experiments.memory import MemoryConfig, MemoryExperiment
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment
from edgelearn.train import Subset


@pytest.fixture(scope="module")
def small():
    """A thicket of 60 pictures of each kind, for all that trains on it."""
    from edgelearn.data.pictures import load_images
    from edgelearn.experiments import flowers

    dataset = thicket_flowers(60)
    drawn = dataset, load_images(dataset, range(len(dataset)), 96)
    patch = pytest.MonkeyPatch()
    patch.setattr(flowers, "drawn_thicket", lambda size: drawn)
    yield
    patch.undo()


def test_a_picture_depends_on_seed_kind_and_index_alone():
    first = draw_hidden("roses", 0, 3, 48)
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    assert np.array_equal(first, thicket_flowers(5).image(4 * 5 + 3, 48))
    assert not np.array_equal(first, draw_hidden("roses", 1, 3, 48))
    with pytest.raises(DataError, match="n_per_class=0"):
        thicket_flowers(0)


def test_three_fifths_of_each_kind_are_trained_with():
    dataset = thicket_flowers()
    train, test = split_thicket(dataset, 2)
    assert (len(train), len(test)) == (1500, 1000) and not set(train) & set(test)
    assert set(np.bincount(dataset.labels[test])) == {200}


def test_fewer_bits_are_worse_in_order(small):
    """On an eighth of the pictures, for as many epochs as they need to differ."""
    found = {}
    for bits in ("fp32", "8", "4"):
        training = PrecisionExperiment.load(PrecisionConfig("thicket", bits, bits, bits, epochs=6))
        training.fit()
        found[bits] = training.model.evaluate(*training.test)["accuracy"]
    assert found["fp32"] > 0.4 and found["8"] > found["4"] + 0.05 and abs(found["fp32"] - found["8"]) < 0.15


def test_other_experiments_have_it(small):
    kept = MemoryExperiment.load(MemoryConfig("thicket", activation_memory="checkpoints"))
    assert kept.test[1].size == 120 and isinstance(kept.train[0], Subset)
    federation = FederatedExperiment.load(FederatedConfig("thicket"))
    assert len(federation.examples.parts) == 10 and federation.model.network.trainable
    for refused in (
        lambda: MemoryExperiment.load(MemoryConfig("thicket", reversible=True)),
        lambda: FederatedExperiment.load(FederatedConfig("thicket", normalization="group")),
        lambda: FlowersConfig(sample=True, thicket=True),
    ):
        with pytest.raises(ConfigError):
            refused()
