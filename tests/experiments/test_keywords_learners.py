"""Learners on words that differ in which bands of the features are loud."""

from dataclasses import dataclass

import numpy as np
import pytest

from edgelearn.data.audio.features import LogMel
from edgelearn.errors import DataError, ShapeError
from edgelearn.experiments.keywords.learners import Embedder, Learner, NearestMean, Prototypes
from edgelearn.graph import Network
from edgelearn.ops import Conv2D, GlobalAveragePooling2D, ReLU

FRONT_END = LogMel(window=400, hop=800, fft=512, bands=12)
FRAMES, BANDS, WAYS = 21, 12, 3


@pytest.fixture(scope="module", params=[True, False], ids=["bands first", "frames first"])
def embedder(request) -> Embedder:
    network = Network("tiny", (BANDS, FRAMES, 1) if request.param else (FRAMES, BANDS, 1))
    network.add("conv", Conv2D(20, 3 if request.param else (3, 5), 2))
    network.add("relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    return Embedder(network, network.initialize(1), FRONT_END)


def words(count: int, seed: int, ways: int = WAYS) -> tuple[np.ndarray, np.ndarray]:
    """`count` clips a word."""
    labels = np.repeat(np.arange(ways), count)
    features = np.random.default_rng(seed).normal(0, 0.3, (len(labels), FRAMES, BANDS))
    for i, label in enumerate(labels):
        features[i, 3 * label : 3 * label + 9, 3 * label : 3 * label + 3] += 3
    return features.astype(np.float32), labels


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_nearest_mean(embedder, distance):
    learned = NearestMean(distance).enrol(embedder, *words(5, 0))
    features, labels = words(20, 1)
    scores = learned.scores(features)
    assert scores.shape == (60, learned.ways) and scores.dtype == np.float32
    assert (scores.argmax(1) == labels).mean() > 0.95
    noise = np.random.default_rng(2).normal(0, 0.3, (30, FRAMES, BANDS))
    assert learned.knownness(features).mean() > learned.knownness(noise).mean()


def test_one_of_your_own(embedder):
    @dataclass(frozen=True)
    class Median(Learner):
        name = "median"

        def classify(self, embeddings, labels, ways, unlabelled=None, seed=0):
            return Prototypes(np.stack([np.median(embeddings[labels == k], 0) for k in range(ways)]))

    try:
        features, labels = words(5, 0)
        assert (Learner.named("median")().enrol(embedder, features, labels).scores(features).argmax(1) == labels).all()
    finally:
        del Learner.registry["median"]


def test_settings_there_and_back():
    learner = NearestMean("euclidean")
    assert Learner.from_dict(learner.to_dict()) == learner
    with pytest.raises(DataError, match="no learner 'oracle'"):
        Learner.from_dict({"learner": "oracle"})
    with pytest.raises(DataError, match="nearest-mean"):
        Learner.from_dict({"learner": "nearest-mean", "colour": "red"})


@pytest.mark.parametrize(
    "labels, message",
    [([0, 1], "label for each"), ([0, 0, 2], "Word 1 of 3"), ([0, 1, -1], "run from -1"), ([0.0, 1.0, 1.0], "float64")],
)
def test_bad_labels(embedder, labels, message):
    with pytest.raises(DataError, match=message):
        NearestMean().enrol(embedder, words(1, 0)[0], np.array(labels))


def test_features_of_other_settings(embedder):
    with pytest.raises(ShapeError, match="front end"):
        embedder.embed(np.zeros((2, FRAMES, BANDS + 1)))
    with pytest.raises(ShapeError, match="frames of 40 bands"):
        Embedder(embedder.network, embedder.weights)
