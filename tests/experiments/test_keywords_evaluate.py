"""Episodes into tables, users into tables, on embeddings that are known."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset
from edgelearn.data.features import LogMel
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import Episodes, personalisation
from edgelearn.experiments.keywords.episodes import Evaluator, to_table
from edgelearn.experiments.keywords.personalisation import to_table as to_personal_table
from edgelearn.keywords.learners import Embedder, FineTune, Head, Learner, Linear, NearestMean, Neighbours
from edgelearn.ops import Conv2D, Flatten
from tests.networks import chain

FRONT_END, WORDS, SPEAKERS, TAKES = LogMel(window=400, hop=8000, fft=512, bands=8), 6, 6, 6


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    """Gives the features themselves."""
    network = chain("identity", (3, 8, 1), conv=Conv2D(1, 1, use_bias=False), flatten=Flatten())
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
        assert report.known.shape == (120,) and report.unknown.shape == (80,)
    assert reports[2].measures["accuracy"].mean < 0.9
    record = reports[2].to_dict()
    assert record["speakers"] == "other" and record["measures"]["accuracy"]["count"] == 20
    text = to_table(reports).to_text(140)
    assert "20 episodes" in text
    (line,) = (line for line in text.splitlines() if "nearest-mean, euclidean" in line and " other " in line)
    measured = [reports[2].measures[name] for name in ("accuracy", "auroc", "false_rejects", "accepted_accuracy")]
    assert all(str(interval) in line for interval in measured)


def test_learners_that_change_the_network_are_enrolled_in_each_episode(embedder):
    dataset, features = clips()
    report = Evaluator(embedder, features).run(FineTune("all", 3), Episodes(dataset, 3, 2, 2, 2, "same", 3))
    assert report.measures["accuracy"].mean > 0.9 and len(report.known) == 18


def with_head(embedder: Embedder) -> Embedder:
    """The words' own directions: speakers' num_classes mislead it. Words 4 and 5 are none that a user enrols."""
    kernel = np.zeros((24, WORDS), np.float32)
    kernel[np.arange(WORDS), np.arange(WORDS)] = 4
    kernel[12 + np.arange(WORDS), np.arange(WORDS)] = 3
    return embedder.with_weights(embedder.weights, Head(kernel, np.zeros(WORDS, np.float32)))


def test_a_user_is_recognised_after_enrolment(embedder):
    dataset, features = clips()
    able, protocol = with_head(embedder), personalisation.Protocol((0, 1, 2, 3), min_clips=5, folds=2)
    report = personalisation.CrossValidation(able, dataset, features, protocol).run(FineTune("head", 100, 0.1), 3)
    assert len(report.users) == SPEAKERS and report.column("tested").sum() == SPEAKERS * 4 * TAKES
    plain = able.head.scores(able.embed(features)).argmax(1)
    own = dataset.labels < 4
    assert report.mean("error_before") == pytest.approx(np.mean(plain[own] != dataset.labels[own]))
    assert report.mean("error_after") < 0.2 * report.mean("error_before")
    assert report.worst_tenth("error_after") <= report.worst_tenth("error_before")
    assert report.mean("nbytes") == 4 * (24 + 1) * WORDS
    assert all(user.enrolled == 12 and user.seconds > 0 for user in report.users)
    text = to_personal_table([report]).to_text(170)
    (line,) = (line.split() for line in text.splitlines() if line.lstrip().startswith("3 "))
    assert line[:3] == ["3", "12.0", str(SPEAKERS)] and "FineTune(part='head'" in text
    rows = personalisation.users_table(report).rows
    assert sorted(row[0] for row in rows) == [user.name for user in report.users]
    assert [float(row[3]) for row in rows] == sorted(
        (round(100 * u.error_before, 2) for u in report.users), reverse=True
    )


def test_users_without_clips_enough(embedder):
    dataset, features = clips()
    with pytest.raises(DataError, match="7 clips"):
        personalisation.CrossValidation(
            with_head(embedder), dataset, features, personalisation.Protocol((0, 1), min_clips=7)
        ).run(FineTune(), 3)
    with pytest.raises(DataError, match="head"):
        personalisation.CrossValidation(embedder, dataset, features, personalisation.Protocol((0, 1)))
    nobody = replace(dataset, speakers=np.full(len(dataset), ""))
    with pytest.raises(DataError, match="speaker"):
        personalisation.CrossValidation(with_head(embedder), nobody, features, personalisation.Protocol((0, 1)))


def test_cross_validations_that_cannot_be(embedder):
    dataset, features = clips()
    able = with_head(embedder)
    own, words = dataset.speakers == "speaker0", dataset.labels < 4
    few = own | (dataset.speakers == "speaker1")
    for chosen, protocol, shots, problem in (
        (own, personalisation.Protocol((0, 1)), 1, "background"),
        (few, personalisation.Protocol((0, 1)), 1, r"speaker\d has clips of keywords"),
        (words, personalisation.Protocol((0, 1, 2, 3)), 1, "clips of non-keywords"),
        (words | True, personalisation.Protocol((0, 6)), 1, r"0 to 5, not \(0, 6\)"),
        (words | True, personalisation.Protocol(()), 1, "0 to 5, not"),
        (words | True, personalisation.Protocol(tuple(range(WORDS))), 1, "against"),
        (words | True, personalisation.Protocol((0, 1)), 0, "not 0"),
    ):
        with pytest.raises(DataError, match=problem):
            personalisation.CrossValidation(able, dataset.take(chosen), features[chosen], protocol).run(
                FineTune(), shots
            )


def test_features_of_other_clips_are_refused(embedder):
    dataset, features = clips()
    with pytest.raises(DataError, match=r"216.* 215"):
        Evaluator(embedder, features[1:]).run(NearestMean(), Episodes(dataset, 3, 2, 2, 2, "same", 3))


def test_thresholds_reject():
    scores = np.log(np.array([[0.9, 0.05, 0.05], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]]))
    assert personalisation.Protocol((0, 1), threshold=np.log(0.5), against="none").predict(scores).tolist() == [
        0,
        -1,
        -1,
    ]
    assert personalisation.Protocol((0, 1)).predict(scores).tolist() == [0, 0, -1]
    assert personalisation.Protocol((0, 1), threshold=np.log(2)).predict(scores).tolist() == [0, -1, -1]
    for count in range(4):
        assert (
            np.count_nonzero(personalisation.Protocol((0, 1)).with_accepts(scores, count).predict(scores) >= 0) == count
        )


@dataclass(frozen=True)
class Eager(Learner):
    """Accepts more than the head does."""

    name = ""

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        return Linear(embedder.head.kernel, embedder.head.bias + 9 * (np.arange(num_classes) < 4))


def test_who_accepts_everything_gains_nothing(embedder):
    dataset, features = clips()
    validation = personalisation.CrossValidation(
        with_head(embedder), dataset, features, personalisation.Protocol((0, 1, 2, 3), folds=2)
    )
    found = validation.run(Eager(), 3)
    assert found.column("false_accepts_before").mean() < 0.6
    assert found.increase("false_accepts") <= 0.1  # by a threshold set on the other half of the people
    assert validation._embedders[False].background.non_keywords.shape[0] == len(features) // 6


def test_settings_are_chosen_on_other_users(embedder):
    dataset, features = clips()
    validation = personalisation.CrossValidation(
        with_head(embedder), dataset, features, personalisation.Protocol((0, 1, 2, 3), folds=2)
    )
    nothing, much = Neighbours(0.0), Neighbours(4.0, 8.0, 1)
    found = personalisation.run_selected(validation, 3, [nothing, much], max_increase=0.05)
    assert found.learner == str(much) and found.reduction > 0.5
    same = validation.run(nothing, 3)
    both = personalisation.average([found, same]).column("error_after")
    assert np.allclose(both, (found.column("error_after") + same.column("error_after")) / 2)
    low, high = found.reduction_interval
    assert low <= found.reduction <= high


def test_what_costs_other_people_too_much_is_not_chosen():
    def report(after: float, accepts: float) -> personalisation.PersonalisationReport:
        return personalisation.PersonalisationReport(
            "", 5, (personalisation.UserResult("a", 9, 5, 0.2, after, 0.05, accepts, 0.1, 0.1, 0, 0.0),)
        )

    assert personalisation.select([report(0.2, 0.05), report(0.1, 0.055), report(0.0, 0.2)]) == 1
    assert personalisation.select([report(0.2, 0.2), report(0.1, 0.3)]) == 0


def test_the_imported_network_and_its_personalisation(monkeypatch):
    """96.0 % of all clips of the test set with the official network; these are those of a third of its speakers."""
    if not os.environ.get("EDGELEARN_DATA"):
        pytest.skip("EDGELEARN_DATA isn't set: no trained weights and no clips")
    every = personalisation.load_named(personalisation.ENGLISH)
    some = every.take(np.isin(every.speakers, np.unique(every.speakers)[1::3]))
    monkeypatch.setattr(personalisation, "load_named", lambda *_: some)
    (validation,) = personalisation.english_users(seeds=1)
    scores = validation.head.scores(validation.embeddings)
    assert len(scores) == 1144 and np.mean(scores.argmax(1) == validation.labels) >= 0.955
    few = slice(None, None, 200)
    plain = personalisation.load_english()
    assert np.allclose(plain.head.scores(plain.embed(validation.features[few])), scores[few], atol=1e-4)
    (report,) = personalisation.personalise_english([validation], [5], [Neighbours(8.0)])
    assert len(report.users) == 16 and report.reduction >= 0.3
    assert report.increase("false_accepts") <= 0.01
