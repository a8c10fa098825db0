"""Learners on words that differ in which bands of the features are loud."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from edgelearn.data.features import LogMel
from edgelearn.errors import DataError, ShapeError, UsageError
from edgelearn.keywords import learners
from edgelearn.ops import BatchNormalization, Conv2D, GlobalAveragePooling2D, ReLU
from tests.networks import chain

FRONT_END = LogMel(window=400, hop=800, fft=512, bands=12)
FRAMES, BANDS, CLASSES = 21, 12, 3


@pytest.fixture(scope="module")
def embedder() -> learners.Embedder:
    return tiny(bands_first=True)


def tiny(bands_first: bool) -> learners.Embedder:
    network = chain(
        "tiny", (BANDS, FRAMES, 1) if bands_first else (FRAMES, BANDS, 1), conv=Conv2D(20, 3, 2, use_bias=False),
        conv_bn=BatchNormalization(), conv_relu=ReLU(), tail=Conv2D(24, 1, use_bias=False),
        tail_bn=BatchNormalization(), tail_relu=ReLU(), pool=GlobalAveragePooling2D(),
    )  # fmt: skip
    weights = network.initialize(1)
    return learners.Embedder(network, weights | {"tail_bn/gamma": 4 * weights["tail_bn/gamma"]}, FRONT_END)


def words(count: int, seed: int, num_classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """`count` clips a word."""
    labels = np.repeat(np.arange(num_classes), count)
    features = np.random.default_rng(seed).normal(0, 0.3, (len(labels), FRAMES, BANDS))
    for i, label in enumerate(labels):
        features[i, 3 * label : 3 * label + 9, 3 * label : 3 * label + 3] += 3
    return features.astype(np.float32), labels


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("bands_first", [True, False])
def test_nearest_mean(bands_first, distance):
    learned = learners.NearestMean(distance).enrol(tiny(bands_first), *words(5, 0))
    features, labels = words(20, 1)
    scores = learned.scores(features)
    assert scores.shape == (60, learned.num_classes) and scores.dtype == np.float32
    assert (scores.argmax(1) == labels).mean() > 0.95
    noise = np.random.default_rng(2).normal(0, 0.3, (30, FRAMES, BANDS))
    assert learned.known_score(features).mean() > learned.known_score(noise).mean()


def test_one_of_your_own(embedder):
    @dataclass(frozen=True)
    class Median(learners.Learner):
        name = "median"

        def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
            return learners.Prototypes(np.stack([np.median(embeddings[labels == k], 0) for k in range(num_classes)]))

    try:
        features, labels = words(5, 0)
        assert (
            learners.Learner.named("median")().enrol(embedder, features, labels).scores(features).argmax(1) == labels
        ).all()
    finally:
        del learners.Learner.registry["median"]


@pytest.mark.parametrize(
    "labels, message",
    [([0, 1], r"\(2,\)"), ([0, 0, 2], "Word 1 of 3"), ([0, 1, -1], "from -1 to 1"), ([0.0, 1.0, 1.0], "float64")],
)
def test_bad_labels(embedder, labels, message):
    with pytest.raises(DataError, match=message):
        learners.NearestMean().enrol(embedder, words(1, 0)[0], np.array(labels))


def test_features_of_other_settings(embedder):
    with pytest.raises(ShapeError, match=r"21, 12.*21, 13"):
        embedder.embed(np.zeros((2, FRAMES, BANDS + 1)))
    with pytest.raises(ShapeError, match="40 bands"):
        learners.Embedder(embedder.network, embedder.weights)


def learned(learner, embedder, unlabelled=None) -> float:
    """Accuracy on other clips."""
    features, labels = words(20, 1)
    spotter = learner.enrol(embedder, *words(5, 0), unlabelled)
    assert spotter.num_classes == CLASSES
    return (spotter.scores(features).argmax(1) == labels).mean()


@pytest.mark.parametrize("part", ["head", "last-block", "batchnorm", "all"])
def test_fine_tuning_changes_its_part(embedder, part):
    spotter = learners.FineTune(part, epochs=4).enrol(embedder, *words(5, 0))
    changed = {name for name, w in embedder.weights.items() if not np.array_equal(w, spotter.embedder.weights[name])}
    expected = {
        "head": set(),
        "last-block": {"tail/kernel", "tail_bn/gamma", "tail_bn/beta"},
        "batchnorm": {"conv_bn/gamma", "conv_bn/beta", "tail_bn/gamma", "tail_bn/beta"},
        "all": embedder.network.trainable,
    }[part]
    assert changed == expected
    assert learned(learners.FineTune(part, epochs=40, learning_rate=0.1), embedder) > 0.95


def test_fine_tuning_starts_as_nearest_mean(embedder):
    spotter = learners.FineTune("head", epochs=1, learning_rate=0.0).enrol(embedder, *words(1, 0))
    features, _ = words(20, 1)
    nearest = learners.NearestMean("cosine").enrol(embedder, *words(1, 0))
    assert (spotter.scores(features).argmax(1) == nearest.scores(features).argmax(1)).all()


def test_fine_tuning_starts_from_the_embedders_own_head(embedder):
    rng = np.random.default_rng(0)
    head = learners.Head(rng.normal(size=(embedder.size, 4)).astype(np.float32), np.zeros(4, np.float32))
    known = embedder.with_weights(embedder.weights, head)
    features, labels = words(3, 0)
    spotter = learners.FineTune("head", epochs=1, learning_rate=0.0).enrol(
        known, features, labels
    )  # word 3 has no clip
    expected = embedder.embed(features) @ head.kernel
    assert np.allclose(spotter.scores(features) - expected, (spotter.scores(features) - expected)[:, :1], atol=1e-4)


def test_pseudo_labels_are_learned_from(embedder):
    labelled, labels = words(1, 0)
    unlabelled, _ = words(10, 3)
    learner = learners.PseudoLabels(learners.NearestMean("cosine"), bound=0.0)
    more = learner.enrol(embedder, labelled, labels, unlabelled)
    none = learner.enrol(embedder, labelled, labels)
    assert not np.array_equal(more.classifier.prototypes, none.classifier.prototypes)
    strict = replace(learner, bound=1.0).enrol(embedder, labelled, labels, unlabelled)
    assert np.array_equal(strict.classifier.prototypes, none.classifier.prototypes)
    assert learned(learner, embedder, unlabelled) > 0.95


def test_entropy_falls(embedder):
    features, labels = words(2, 0)
    unlabelled, _ = words(10, 3)
    entropies = []
    for weight in (0.0, 1.0):
        spotter = learners.EntropyMinimisation(learners.FineTune("batchnorm", epochs=5), weight).enrol(
            embedder, features, labels, unlabelled
        )
        log_p = spotter.scores(unlabelled)
        entropies.append(-(np.exp(log_p) * log_p).sum(1).mean())
    assert entropies[1] < entropies[0]


def test_statistics_move_and_nothing_else(embedder):
    features, labels = words(5, 0)
    spotter = learners.BatchNormStatistics(steps=1).enrol(embedder, features, labels, words(5, 2)[0])
    changed = {name for name, w in embedder.weights.items() if not np.array_equal(w, spotter.embedder.weights[name])}
    assert changed == {name for name in embedder.weights if "/moving_" in name}


def test_dummies_reject(embedder):
    with pytest.raises(DataError, match="dummy"):
        learners.DummyPrototypes().enrol(embedder, *words(2, 0))
    d = embedder.size
    rng = np.random.default_rng(0)
    generator = learners.DummyGenerator(
        *(rng.normal(0, 0.3, shape).astype(np.float32) for shape in ((d, d), (d,), (d, 2 * d), (2 * d,))), "euclidean"
    )
    able = learners.Embedder(embedder.network, embedder.weights, FRONT_END, dummies=generator)
    features, labels = words(3, 0)
    spotter = learners.DummyPrototypes().enrol(able, features, labels)
    x = able.embed(features)
    dummies = generator(x).reshape(CLASSES, 3, 2, d).mean(1).max(0)
    assert np.allclose(spotter.classifier.dummies, dummies, atol=1e-4)
    logits = np.concatenate([
        -np.square(x[:, None] - spotter.classifier.prototypes).sum(-1), -np.square(x[:, None] - dummies).sum(-1) / 3,
    ], 1)  # fmt: skip
    p = np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None])
    assert np.allclose(np.exp(spotter.scores(features)), p[:, :CLASSES], atol=1e-4)
    assert np.allclose(spotter.known_score(features), np.log(p[:, :CLASSES].max(1) / p[:, CLASSES:].sum(1)), rtol=1e-3)


def test_settings_and_names():
    learner = learners.PseudoLabels(learners.FineTune("all", epochs=3), bound=0.5)
    settings = learner.to_dict()
    assert settings["learner"] == "pseudo-labels" and settings["bound"] == 0.5
    assert settings["base"]["learner"] == "fine-tune" and settings["base"]["epochs"] == 3
    assert learners.supervised(learner) == learners.FineTune("all", epochs=3)
    with pytest.raises(UsageError, match="'oracle'"):
        learners.Learner.named("oracle")
    for invalid in ({"part": "tail"}, {"epochs": 0}, {"rehearsal": 1.0}):
        with pytest.raises(DataError, match=next(iter(invalid))):
            learners.FineTune(**invalid)
    assert set(learners.Learner.registry) == {
        "nearest-mean", "dummy-prototypes", "fine-tune", "neighbours", "pseudo-labels", "entropy",
        "batchnorm-statistics", "nearest-windows", "whitened-windows",
    }  # fmt: skip


def test_neighbours_raise_the_words_that_sound_like_the_users(embedder):
    (background, others), (features, labels) = words(6, 3), words(2, 4)
    rng = np.random.default_rng(5)
    head = learners.Head(rng.normal(size=(embedder.size, CLASSES)).astype(np.float32), np.zeros(CLASSES, np.float32))
    able = embedder.with_weights(embedder.weights, head).with_background(learners.Background(background, others))
    learner = learners.Neighbours(8.0, 2.0, nearest=2)
    tested, _ = words(4, 6)
    found = learner.enrol(able, features[2:], labels[2:]).scores(tested)  # none of word 0

    x = able.embed(background).astype(np.float64)
    z = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    within = z - np.stack([z[others == k].mean(0) for k in range(CLASSES)])[others]
    precision = np.linalg.inv(0.9 * within.T @ within / len(z) + 0.1 * np.eye(z.shape[1]))
    own, new = ((able.embed(f) - x.mean(0)) / np.maximum(x.std(0), 1e-6) for f in (features, tested))
    lengths = (
        np.sqrt(np.einsum("nd,de,ne->n", new, precision, new)),
        np.sqrt(np.einsum("nd,de,ne->n", own, precision, own)),
    )
    likeness = new @ precision @ own.T / np.outer(*lengths)
    scores = able.embed(tested) @ head.kernel
    for word in (1, 2):
        scores[:, word] += 8 * np.exp(2 * (likeness[:, labels == word] - 1)).mean(1)
    want = scores - np.logaddexp.reduce(scores, 1)[:, None]
    assert np.abs(found - want).max() < 2e-3

    with pytest.raises(DataError, match="neighbours"):
        learner.enrol(embedder, features, labels)
    with pytest.raises(DataError, match="nearest"):
        learners.Neighbours(nearest=0)
