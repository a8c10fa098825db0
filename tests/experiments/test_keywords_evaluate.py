"""Episodes into tables, users into tables, on embeddings that are known."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from edgelearn.data.audio.cache import compute_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.features import LogMel
from edgelearn.data.audio.speech_commands import CLASSES, load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import Episodes
from edgelearn.experiments.keywords.english import load_twelve, personalise_english
from edgelearn.experiments.keywords.evaluate import Evaluator, to_table
from edgelearn.experiments.keywords.personal import (
    Personalisation,
    Protocol,
    User,
    average,
    personalise,
    personalise_chosen,
    users_table,
)
from edgelearn.experiments.keywords.personal import to_table as to_personal_table
from edgelearn.experiments.keywords.personal.choice import choose
from edgelearn.experiments.keywords.personal.trial import Trial
from edgelearn.graph import Network
from edgelearn.keywords.learners import Embedder, FineTune, Head, Learner, Linear, NearestMean, Neighbours
from edgelearn.ops import Conv2D, Flatten

FRONT_END, WORDS, SPEAKERS, TAKES = LogMel(window=400, hop=8000, fft=512, bands=8), 6, 6, 6


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    """Gives the features themselves."""
    network = Network("identity", (3, 8, 1))
    network.add("conv", Conv2D(1, 1, use_bias=False))
    network.add("flatten", Flatten())
    return Embedder(network, {"conv/kernel": np.ones((1, 1, 1, 1), np.float32)}, FRONT_END)


@lru_cache
def clips() -> tuple[ClipDataset, np.ndarray]:
    """Features are one-hot by word and by speaker, and a little noise: speakers say all words in their own way."""
    rng = np.random.default_rng(0)
    words, speakers, _ = np.indices((WORDS, SPEAKERS, TAKES)).reshape(3, -1)
    names = tuple(f"word{k}" for k in range(WORDS))
    items = [np.zeros(1, np.float32)] * len(words)
    dataset = ClipDataset("made up", "folder", "Made up.", names, words, [f"speaker{k}" for k in speakers], items)
    features = rng.normal(0, 0.05, (len(words), 24))
    features[np.arange(len(words)), words] += 1
    features[np.arange(len(words)), WORDS + speakers] += 1
    features[np.arange(len(words)), 12 + (words + speakers) % WORDS] += 1.4
    return dataset, features.reshape(-1, 3, 8).astype(np.float32)


def test_report_of_known_embeddings(embedder):
    dataset, features = clips()
    evaluator = Evaluator(embedder, features)
    reports = [
        evaluator.run(NearestMean(distance), Episodes(dataset, 3, 2, 2, 2, speakers, 20))
        for speakers in ("same", "other")
        for distance in ("euclidean", "cosine")
    ]
    for report in reports[:2]:  # one's own clips are all near each other
        assert report.measures["accuracy"].mean == 1 and report.measures["auroc"].mean == 1
        thresholds, accepted, rejected = report.det()
        assert len(thresholds) == len(accepted) == len(rejected) and accepted[0] == 1 and rejected[-1] == 1
    assert reports[2].measures["accuracy"].mean < 0.9
    record = reports[2].to_dict()
    assert record["speakers"] == "other" and record["measures"]["accuracy"]["count"] == 20
    text = to_table(reports)
    assert "20 episodes" in text
    (line,) = (line for line in text.splitlines() if "nearest-mean, euclidean" in line and " other " in line)
    measured = [reports[2].measures[name] for name in ("accuracy", "auroc", "false_rejects", "accepted_accuracy")]
    assert all(str(interval) in line for interval in measured)


def test_learners_that_change_the_network_are_enrolled_in_each_episode(embedder):
    dataset, features = clips()
    report = Evaluator(embedder, features).run(FineTune("all", 3), Episodes(dataset, 3, 2, 2, 2, "same", 3))
    assert report.measures["accuracy"].mean > 0.9 and len(report.known) == 18


def with_head(embedder: Embedder) -> Embedder:
    """The words' own directions: speakers' ways mislead it. Words 4 and 5 are none that a user enrols."""
    kernel = np.zeros((24, WORDS), np.float32)
    kernel[np.arange(WORDS), np.arange(WORDS)] = 4
    kernel[12 + np.arange(WORDS), np.arange(WORDS)] = 3
    return embedder.with_weights(embedder.weights, Head(kernel, np.zeros(WORDS, np.float32)))


def test_a_user_is_recognised_after_enrolment(embedder):
    dataset, features = clips()
    able, protocol = with_head(embedder), Protocol((0, 1, 2, 3), least=5, parts=2)
    found = personalise(FineTune("head", 100, 0.1), able, dataset, features, protocol, 3)
    record = found.to_dict()
    assert record["users"] == SPEAKERS and record["tested"] == SPEAKERS * 4 * TAKES
    plain = able.head.scores(able.embed(features)).argmax(1)
    own = dataset.labels < 4
    assert record["before"] == pytest.approx(np.mean(plain[own] != dataset.labels[own]))
    assert record["after"] < 0.2 * record["before"]
    assert record["worst_after"] <= record["worst_before"] and record["nbytes"] == 4 * (24 + 1) * WORDS
    assert all(user.enrolled == 12 and user.seconds > 0 for user in found.users)
    text = to_personal_table([found])
    (line,) = (line.split() for line in text.splitlines() if line.lstrip().startswith("3 "))
    assert line[:3] == ["3", "12.0", str(SPEAKERS)] and "FineTune(part='head'" in text
    lines = [line.split() for line in users_table(found).splitlines() if line.lstrip().startswith("speaker")]
    assert sorted(line[0] for line in lines) == [user.name for user in found.users]
    assert [float(line[3]) for line in lines] == sorted((round(100 * u.before, 2) for u in found.users), reverse=True)


def test_users_without_clips_enough(embedder):
    dataset, features = clips()
    with pytest.raises(DataError, match="Nobody has 7 clips"):
        personalise(FineTune(), with_head(embedder), dataset, features, Protocol((0, 1), least=7), 3)
    with pytest.raises(DataError, match="has its head"):
        personalise(FineTune(), embedder, dataset, features, Protocol((0, 1)), 3)
    nobody = replace(dataset, speakers=np.full(len(dataset), ""))
    with pytest.raises(DataError, match="don't say who speaks"):
        personalise(FineTune(), with_head(embedder), nobody, features, Protocol((0, 1)), 3)


def test_trials_that_cannot_be(embedder):
    dataset, features = clips()
    able = with_head(embedder)
    own, words = dataset.speakers == "speaker0", dataset.labels < 4
    few = own | (dataset.speakers == "speaker1")
    for chosen, protocol, shots, problem in (
        (own, Protocol((0, 1)), 1, "too few people for a background"),
        (few, Protocol((0, 1)), 1, r"Nobody but speaker\d has clips of a word"),
        (words, Protocol((0, 1, 2, 3)), 1, "has clips of no word"),
        (words | True, Protocol((0, 6)), 1, r"0 to 5, not \(0, 6\)"),
        (words | True, Protocol(()), 1, "0 to 5, not"),
        (words | True, Protocol(tuple(range(WORDS))), 1, "none stands for no word"),
        (words | True, Protocol((0, 1)), 0, "1 or more, not 0"),
    ):
        with pytest.raises(DataError, match=problem):
            personalise(FineTune(), able, dataset.take(chosen), features[chosen], protocol, shots)


def test_features_of_other_clips_are_refused(embedder):
    dataset, features = clips()
    with pytest.raises(DataError, match="has 216 clips, but there are features of 215"):
        Evaluator(embedder, features[1:]).run(NearestMean(), Episodes(dataset, 3, 2, 2, 2, "same", 3))


def test_thresholds_reject():
    scores = np.log(np.array([[0.9, 0.05, 0.05], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]]))
    assert Protocol((0, 1), threshold=np.log(0.5), against="none").accepted(scores).tolist() == [0, -1, -1]
    assert Protocol((0, 1)).accepted(scores).tolist() == [0, 0, -1]
    assert Protocol((0, 1), threshold=np.log(2)).accepted(scores).tolist() == [0, -1, -1]
    for count in range(4):
        assert np.count_nonzero(Protocol((0, 1)).accepting(scores, count).accepted(scores) >= 0) == count


@dataclass(frozen=True)
class Eager(Learner):
    """Takes everything for the words, more than the plain classifier does."""

    name = ""

    def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0):
        return Linear(embedder.head.kernel, embedder.head.bias + 9 * (np.arange(ways) < 4))


def test_who_accepts_everything_gains_nothing(embedder):
    dataset, features = clips()
    trial = Trial(with_head(embedder), dataset, features, Protocol((0, 1, 2, 3), parts=2))
    found = trial.run(Eager(), 3)
    assert found.column("accepts_before").mean() < 0.6
    assert found.rise("accepts") <= 0.1  # by a threshold set on the other half of the people
    assert trial.rehearsing[False].background.others.shape[0] == len(features) // 6


def test_settings_are_chosen_on_other_users(embedder):
    dataset, features = clips()
    trial = Trial(with_head(embedder), dataset, features, Protocol((0, 1, 2, 3), parts=2))
    nothing, much = Neighbours(0.0), Neighbours(4.0, 8.0, 1)
    found = personalise_chosen(trial, 3, [nothing, much], allowed=0.05)
    assert found.learner == str(much) and found.cut > 0.5
    same = trial.run(nothing, 3)
    both = average([found, same]).column("after")
    assert np.allclose(both, (found.column("after") + same.column("after")) / 2)
    low, high = found.cut_range
    assert low <= found.cut <= high


def test_what_costs_other_people_too_much_is_not_chosen():
    def came_to(after: float, accepts: float) -> Personalisation:
        return Personalisation("", 5, (User("a", 9, 5, 0.2, after, 0.05, accepts, 0.1, 0.1, 0, 0.0),))

    assert choose([came_to(0.2, 0.05), came_to(0.1, 0.055), came_to(0.0, 0.2)]) == 1
    assert choose([came_to(0.2, 0.2), came_to(0.1, 0.3)]) == 0


def test_personalisation_in_english():
    if not os.environ.get("EDGELEARN_DATA"):
        pytest.skip("EDGELEARN_DATA isn't set: no trained weights and no clips")
    (found,) = personalise_english([5], seeds=1, candidates=[Neighbours(8.0), Neighbours(16.0)])
    assert len(found.users) == 43 and found.cut >= 0.3
    assert found.rise("accepts") <= 0.01


def test_twelve_classes_of_the_imported_network():
    """96.0 % of all clips of the test set with the official network; these are 3,746 of them."""
    if not os.environ.get("EDGELEARN_DATA"):
        pytest.skip("EDGELEARN_DATA isn't set: no trained weights and no clips")
    dataset = load_named("speech_commands_v0.02_test").only(CLASSES)
    embedder = load_twelve()
    scores = embedder.head.scores(embedder.embed(compute_features(dataset)))
    assert np.mean(scores.argmax(1) == dataset.labels) >= 0.955
