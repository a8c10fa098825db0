import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from edgelearn.data.audio import ClipDataset
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError
from edgelearn.experiments import keywords
from edgelearn.experiments.keywords.episodes import PARTS, WORD_SPLITS
from edgelearn.statistics import interval, student_t

FEW = embedded_words(6, 5, 3)


def test_held_out_words_and_speakers_are_in_the_test_alone():
    split = keywords.hold_out(FEW, words=2, speakers=2, seed=3)
    assert len(split.train) == 4 * 3 * 3 and len(split.test) == 2 * 2 * 3
    assert len(split.train.class_names) == 4 and len(split.test.class_names) == 2
    assert not set(split.train.words) & set(split.test.words)
    assert not set(split.train.speakers) & set(split.test.speakers)
    again, other = (keywords.hold_out(FEW, words=2, speakers=2, seed=seed) for seed in (3, 4))
    assert again.test.items == split.test.items != other.test.items


def test_only_words_or_only_speakers_and_by_name():
    words = keywords.hold_out(FEW, words=["kena"])
    assert set(words.test.words) == {"kena"} and set(words.test.speakers) == set(FEW.speakers)
    speakers = keywords.hold_out(FEW, speakers=1)
    assert len(speakers.test) == 18 and set(speakers.test.words) == set(FEW.words)
    for wrong, message in (
        ({"words": ["kenya"]}, "kenya"),
        ({"words": 6}, "1 to 5 .* not 6"),
        ({"speakers": list(np.unique(FEW.speakers))}, "train"),
    ):
        with pytest.raises(DataError, match=message):
            keywords.hold_out(FEW, **wrong)


def test_a_leak_is_an_error():
    one, other = FEW.take(FEW.labels < 3), FEW.take(FEW.labels >= 3)
    keywords.check_disjoint(one, other, speakers=False)
    with pytest.raises(keywords.LeakError, match="synthesised00"):
        keywords.check_disjoint(one, other)
    with pytest.raises(keywords.LeakError, match="sola"):
        keywords.check_disjoint(one, FEW.take([0]), speakers=False)
    with pytest.raises(keywords.LeakError, match=": a"):
        keywords.WordSplit(train=("a", "b"), test=("c",), unknown=("a",))


def test_speakers_that_are_not_known_cannot_be_kept_apart():
    speakers = FEW.speakers.copy()
    speakers[4] = ""
    some = ClipDataset("some", "folder", "Some.", FEW.class_names, FEW.labels, speakers, FEW.items)
    for split in (lambda: keywords.hold_out(some, speakers=1), lambda: keywords.check_disjoint(some, FEW, words=False)):
        with pytest.raises(DataError, match="1 clips of some"):
            split()


def test_published_splits_divide_the_35_words():
    for name, split in WORD_SPLITS.items():
        sizes = len(split.train), len(split.validation), len(split.test), len(split.unknown)
        assert sizes == ((15, 5, 10, 5) if name == "rusci2023" else (20, 0, 10, 5))
        assert len({*split.train, *split.validation, *split.test, *split.unknown}) == 35


TESTED = ("022cd682", "03401e93", "0c540988", "0cb74144", "5170b77f", "ea37ca08")  # in the canonical test set


def test_speakers_are_divided_by_their_hash():
    parts = [keywords.which_set(f"{number:08x}") for number in range(20000)]
    shares = [parts.count(part) / len(parts) for part in PARTS]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)
    assert {keywords.which_set(speaker) for speaker in TESTED} == {"testing"}
    assert keywords.which_set("anyone", validation=100, testing=0) == "validation"


def test_the_real_test_set_is_in_the_test():
    root = os.environ.get("EDGELEARN_DATA")
    if not root or not Path(root, "speech_commands_v0.02_test").is_dir():
        pytest.skip("EDGELEARN_DATA isn't set, or has no speech_commands_v0.02_test: no real speakers to test with")
    files = Path(root, "speech_commands_v0.02_test").glob("[!_]*/*_nohash_*")
    speakers = {file.name.partition("_")[0] for file in files}
    assert len(speakers) > 100
    assert {keywords.which_set(speaker) for speaker in speakers} == {"testing"}


def test_parts_share_no_speaker():
    speakers = np.repeat([f"{number:08x}" for number in range(200)], 2)
    dataset = ClipDataset("all", "folder", "All.", ("a", "b"), [0, 1] * 200, speakers, [b""] * 400)
    parts = [keywords.part_of(dataset, part) for part in PARTS]
    assert sum(map(len, parts)) == 400 and len(parts[0]) > 280
    assert all(
        {keywords.which_set(name) for name in clips.speakers} == {part}
        for part, clips in zip(PARTS, parts, strict=True)
    )
    some = keywords.part_of(dataset, "testing", ["b"])
    assert some.class_names == ("b",) and 2 * len(some) == len(parts[2])
    with pytest.raises(DataError, match="'train'"):
        keywords.part_of(dataset, "train")


SAMPLE = embedded_words(8, 6, 10)


def all_of(episode):
    return [episode.support.tolist(), episode.query.tolist(), episode.unknown.tolist(), episode.words]


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
@pytest.mark.parametrize("shots", [1, 5, 8])
def test_episodes(speakers, shots):
    queries = 2 if shots == 8 else 5
    episodes = keywords.Episodes(SAMPLE, 5, shots, queries, speakers=speakers, count=50, seed=2)
    assert len(list(episodes)) == len(episodes) == 50
    words, who = SAMPLE.words, SAMPLE.speakers
    for episode in episodes:
        assert episode.support.shape == (5, shots) and episode.query.shape == (5, queries)
        assert episode.unknown.shape == (3, queries) and len(set(episode.words)) == 5
        for rows in (episode.support, episode.query):
            assert (words[rows] == np.array(episode.words)[:, None]).all()
        assert not set(words[episode.unknown].ravel()) & set(episode.words)
        assert all(len(set(row)) == 1 for row in words[episode.unknown])
        assert episode.support_labels.tolist() == np.repeat(range(5), shots).tolist()
        assert episode.query_labels.tolist() == np.repeat(range(5), queries).tolist()
        tested = set(who[episode.query].ravel()) | set(who[episode.unknown].ravel())
        if speakers != "any":
            assert len(tested) == 1
        if speakers == "same":
            assert set(who[episode.support].ravel()) == tested
        if speakers == "other":
            assert not set(who[episode.support].ravel()) & tested
            assert all(len(set(row)) == min(shots, 5) for row in who[episode.support])
    drawn = [episode.words for episode in episodes]
    assert len(set(drawn)) > 30 and {word for words in drawn for word in words} == set(SAMPLE.class_names)


@pytest.mark.parametrize("speakers", ["same", "other"])
def test_unlabelled_clips_are_of_the_words_and_of_who_is_recognised(speakers):
    plain = keywords.Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=10)
    for number, episode in enumerate(keywords.Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=10, unlabelled=2)):
        assert episode.unlabelled.shape == (4, 2)
        assert (SAMPLE.words[episode.unlabelled] == np.array(episode.words)[:, None]).all()
        assert set(SAMPLE.speakers[episode.unlabelled].ravel()) == set(SAMPLE.speakers[episode.query].ravel())
        assert np.array_equal(episode.query, plain[number].query) and not plain[number].unlabelled.size


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
def test_words_that_are_always_unknown(speakers):
    never = SAMPLE.class_names[2:5]
    episodes = keywords.Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=30, unknown_words=never)
    assert episodes.unknown == 3
    for episode in episodes:
        assert not set(episode.words) & set(never)
        assert set(SAMPLE.words[episode.unknown].ravel()) == set(never)
    assert len({episode.words for episode in episodes}) > 10
    for settings, problem in (
        ({"num_classes": 6}, "for 6 "),
        ({"num_classes": 2, "unknown": 4}, "4 to reject"),
        ({"num_classes": 2, "unknown_words": ("sun",)}, "'sun'"),
    ):
        with pytest.raises(DataError, match=problem):
            keywords.Episodes(SAMPLE, **{"unknown_words": never} | settings)


def test_an_episode_depends_on_seed_and_number_alone():
    few, many, other = (keywords.Episodes(SAMPLE, count=count, seed=seed) for count, seed in ((5, 1), (50, 1), (5, 2)))
    assert all_of(many[4]) == all_of(few[4]) != all_of(other[4])
    assert all_of(many[3]) != all_of(many[4])
    with pytest.raises(IndexError):
        few[5]


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
def test_more_shots_are_tested_on_the_same_clips(speakers):
    one, five = (keywords.Episodes(SAMPLE, shots=shots, speakers=speakers, count=20) for shots in (1, 5))
    for few, many in zip(one, five, strict=True):
        assert all_of(few)[1:] == all_of(many)[1:]


def test_speakers_who_lack_clips_are_left_out():
    """Four words of five clips by one speaker, of three by another, and of one by many."""
    counts = {"a": 5, "b": 3} | {f"s{k}": 1 for k in range(9)}
    every = [(label, who) for who, count in counts.items() for label in range(4) for _ in range(count)]
    labels, who = zip(*every, strict=True)
    dataset = ClipDataset("few", "folder", "Few.", tuple("wxyz"), labels, who, [b""] * len(every))

    def recognised(**settings):
        return {
            who[i]
            for episode in keywords.Episodes(dataset, 3, unknown=1, count=30, **settings)
            for i in episode.query.flat
        }

    assert recognised(shots=2, queries=3) == {"a"}
    assert recognised(shots=1, queries=2) == {"a", "b"}
    assert recognised(shots=10, queries=3, speakers="other") == {"a", "b"}
    with pytest.raises(DataError, match=r"few .*3 words with 4 .*3 "):
        keywords.Episodes(dataset, 3, 4, 3)
    with pytest.raises(DataError, match=r"few .*3 words with 20 "):
        keywords.Episodes(dataset, 3, 20, 3, speakers="any")


def test_what_cannot_be_is_refused():
    with pytest.raises(DataError, match=r"8 words.* 9 "):
        keywords.Episodes(SAMPLE, num_classes=9)
    with pytest.raises(DataError, match=r"8 words.* 5 .* 4 "):
        keywords.Episodes(SAMPLE, unknown=4)
    for wrong in ({"shots": 0}, {"speakers": "mine"}, {"count": 0}, {"unlabelled": -1}, {"seed": -1}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            keywords.Episodes(SAMPLE, **wrong)
    with pytest.raises(keywords.LeakError):
        keywords.Episode(("a",), np.array([[1, 2]]), np.array([[2]]), *[np.empty((0, 1), int)] * 2)
    assert keywords.Episodes(SAMPLE, num_classes=8)[0].unknown.shape == (0, 5)


def scores(seed, known=37, unknown=53, steps=None):
    """Overlapping scores, with ties when rounded to `steps`."""
    rng = np.random.default_rng(seed)
    pair = rng.normal(1, 1, known), rng.normal(0, 1, unknown)
    return tuple(np.round(values * steps) / steps for values in pair) if steps else pair


@pytest.mark.parametrize("steps", [None, 2])
def test_auroc_is_mann_whitneys_u(steps):
    known, unknown = scores(0, steps=steps)
    expected = stats.mannwhitneyu(known, unknown).statistic / (len(known) * len(unknown))
    assert keywords.auroc(known, unknown) == pytest.approx(expected, abs=1e-12)
    assert keywords.auroc([2, 3], [0, 1]) == 1 and keywords.auroc([0], [1]) == 0 and keywords.auroc([1], [1]) == 0.5


@pytest.mark.parametrize("steps", [None, 2])
def test_det_curve_counts_errors_at_every_threshold(steps):
    known, unknown = scores(1, steps=steps)
    thresholds, accepted, rejected = keywords.det_curve(known, unknown)
    assert len(thresholds) == len(set(known) | set(unknown)) + 1
    np.testing.assert_allclose(accepted, [(unknown >= t).mean() for t in thresholds], atol=1e-12)
    np.testing.assert_allclose(rejected, [(known < t).mean() for t in thresholds], atol=1e-12)
    assert (accepted[0], rejected[0], accepted[-1], rejected[-1]) == (1, 0, 0, 1)


def test_equal_error_rate():
    assert keywords.equal_error_rate([2, 3], [0, 1]) == 0
    assert keywords.equal_error_rate([0], [1]) == 1
    assert keywords.equal_error_rate([0, 2, 2, 2], [1, 1, 1, 3]) == pytest.approx(0.25)
    many = scores(2, 200_000, 200_000)
    assert keywords.equal_error_rate(*many) == pytest.approx(stats.norm.cdf(-0.5), abs=3e-3)


def test_open_set():
    labels = np.array([0, 1, 2, 0, 1])
    predicted = np.array([0, 1, 1, 0, 2])
    known, unknown = np.array([5, 4, 3, 0.5, 2.5]), np.arange(20) / 10
    found = keywords.open_set(predicted, labels, known, unknown, 0.05)
    assert found.accuracy == keywords.accuracy(predicted, labels) == 0.6
    assert found.threshold == 1.9 and found.false_accepts == 0.05
    assert found.false_rejects == 0.2 and found.accepted_accuracy == 0.4
    strict = keywords.open_set(predicted, labels, known, unknown, 0.0)
    assert strict.threshold == 2.5 and strict.false_accepts == 0
    none = keywords.open_set(predicted, labels, known, [9.0], 0.0)
    assert none.false_rejects == 1 and none.accepted_accuracy == 0


@pytest.mark.parametrize("degrees", [1, 2, 5, 30, 599])
def test_students_t(degrees):
    for confidence in (0.5, 0.95, 0.99):
        assert student_t(confidence, degrees) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-5)


def test_interval():
    values = np.random.default_rng(0).normal(0.9, 0.05, 12)
    found = interval(values)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert found.mean - found.margin == pytest.approx(low) and found.mean + found.margin == pytest.approx(high)
    assert str(found).startswith("0.9") and found.count == 12
    for wrong in ([0.5], [0.5, np.nan]):
        with pytest.raises(DataError, match=r"0.5"):
            interval(wrong)
    for pair in (([], [1]), ([1], []), ([np.nan], [1])):
        with pytest.raises(DataError):
            keywords.auroc(*pair)
