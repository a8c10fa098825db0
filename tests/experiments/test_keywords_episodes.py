import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import Episode, Episodes, LeakError

SAMPLE = embedded_words(8, 6, 10)


def all_of(episode):
    return [episode.support.tolist(), episode.query.tolist(), episode.unknown.tolist(), episode.words]


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
@pytest.mark.parametrize("shots", [1, 5, 8])
def test_episodes(speakers, shots):
    queries = 2 if shots == 8 else 5
    episodes = Episodes(SAMPLE, 5, shots, queries, speakers=speakers, count=50, seed=2)
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
    plain = Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=10)
    for number, episode in enumerate(Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=10, unlabelled=2)):
        assert episode.unlabelled.shape == (4, 2)
        assert (SAMPLE.words[episode.unlabelled] == np.array(episode.words)[:, None]).all()
        assert set(SAMPLE.speakers[episode.unlabelled].ravel()) == set(SAMPLE.speakers[episode.query].ravel())
        assert np.array_equal(episode.query, plain[number].query) and not plain[number].unlabelled.size


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
def test_words_that_are_always_unknown(speakers):
    never = SAMPLE.class_names[2:5]
    episodes = Episodes(SAMPLE, 4, 1, 2, speakers=speakers, count=30, unknown_words=never)
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
            Episodes(SAMPLE, **{"unknown_words": never} | settings)


def test_an_episode_depends_on_seed_and_number_alone():
    few, many, other = (Episodes(SAMPLE, count=count, seed=seed) for count, seed in ((5, 1), (50, 1), (5, 2)))
    assert all_of(many[4]) == all_of(few[4]) != all_of(other[4])
    assert all_of(many[3]) != all_of(many[4])
    with pytest.raises(IndexError):
        few[5]


@pytest.mark.parametrize("speakers", ["same", "other", "any"])
def test_more_shots_are_tested_on_the_same_clips(speakers):
    one, five = (Episodes(SAMPLE, shots=shots, speakers=speakers, count=20) for shots in (1, 5))
    for few, many in zip(one, five, strict=True):
        assert all_of(few)[1:] == all_of(many)[1:]


def test_speakers_who_lack_clips_are_left_out():
    """Four words of five clips by one speaker, of three by another, and of one by many."""
    counts = {"a": 5, "b": 3} | {f"s{k}": 1 for k in range(9)}
    every = [(label, who) for who, count in counts.items() for label in range(4) for _ in range(count)]
    labels, who = zip(*every, strict=True)
    dataset = ClipDataset("few", "folder", "Few.", tuple("wxyz"), labels, who, [b""] * len(every))

    def recognised(**settings):
        return {who[i] for episode in Episodes(dataset, 3, unknown=1, count=30, **settings) for i in episode.query.flat}

    assert recognised(shots=2, queries=3) == {"a"}
    assert recognised(shots=1, queries=2) == {"a", "b"}
    assert recognised(shots=10, queries=3, speakers="other") == {"a", "b"}
    with pytest.raises(DataError, match=r"few .*3 words with 4 .*3 "):
        Episodes(dataset, 3, 4, 3)
    with pytest.raises(DataError, match=r"few .*3 words with 20 "):
        Episodes(dataset, 3, 20, 3, speakers="any")


def test_what_cannot_be_is_refused():
    with pytest.raises(DataError, match=r"8 words.* 9 "):
        Episodes(SAMPLE, num_classes=9)
    with pytest.raises(DataError, match=r"8 words.* 5 .* 4 "):
        Episodes(SAMPLE, unknown=4)
    for wrong in ({"shots": 0}, {"speakers": "mine"}, {"count": 0}, {"unlabelled": -1}, {"seed": -1}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            Episodes(SAMPLE, **wrong)
    with pytest.raises(LeakError):
        Episode(("a",), np.array([[1, 2]]), np.array([[2]]), *[np.empty((0, 1), int)] * 2)
    assert Episodes(SAMPLE, num_classes=8)[0].unknown.shape == (0, 5)
