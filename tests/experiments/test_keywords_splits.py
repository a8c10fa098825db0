import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import LeakError, WordSplit, check_disjoint, hold_out
from edgelearn.experiments.keywords.episodes import WORD_SPLITS

SAMPLE = embedded_words(6, 5, 3)


def test_held_out_words_and_speakers_are_in_the_test_alone():
    split = hold_out(SAMPLE, words=2, speakers=2, seed=3)
    assert len(split.train) == 4 * 3 * 3 and len(split.test) == 2 * 2 * 3
    assert len(split.train.class_names) == 4 and len(split.test.class_names) == 2
    assert not set(split.train.words) & set(split.test.words)
    assert not set(split.train.speakers) & set(split.test.speakers)
    again, other = (hold_out(SAMPLE, words=2, speakers=2, seed=seed) for seed in (3, 4))
    assert again.test.items == split.test.items != other.test.items


def test_only_words_or_only_speakers_and_by_name():
    words = hold_out(SAMPLE, words=["kena"])
    assert set(words.test.words) == {"kena"} and set(words.test.speakers) == set(SAMPLE.speakers)
    speakers = hold_out(SAMPLE, speakers=1)
    assert len(speakers.test) == 18 and set(speakers.test.words) == set(SAMPLE.words)
    for wrong, message in (
        ({"words": ["kenya"]}, "kenya"),
        ({"words": 6}, "1 to 5 .* not 6"),
        ({"speakers": list(np.unique(SAMPLE.speakers))}, "train"),
    ):
        with pytest.raises(DataError, match=message):
            hold_out(SAMPLE, **wrong)


def test_a_leak_is_an_error():
    one, other = SAMPLE.take(SAMPLE.labels < 3), SAMPLE.take(SAMPLE.labels >= 3)
    check_disjoint(one, other, speakers=False)
    with pytest.raises(LeakError, match="synthesised00"):
        check_disjoint(one, other)
    with pytest.raises(LeakError, match="sola"):
        check_disjoint(one, SAMPLE.take([0]), speakers=False)
    with pytest.raises(LeakError, match=": a"):
        WordSplit(train=("a", "b"), test=("c",), unknown=("a",))


def test_speakers_that_are_not_known_cannot_be_kept_apart():
    speakers = SAMPLE.speakers.copy()
    speakers[4] = ""
    some = ClipDataset("some", "folder", "Some.", SAMPLE.class_names, SAMPLE.labels, speakers, SAMPLE.items)
    for split in (lambda: hold_out(some, speakers=1), lambda: check_disjoint(some, SAMPLE, words=False)):
        with pytest.raises(DataError, match="1 clips of some"):
            split()


def test_published_splits_divide_the_35_words():
    for name, split in WORD_SPLITS.items():
        sizes = len(split.train), len(split.validation), len(split.test), len(split.unknown)
        assert sizes == ((15, 5, 10, 5) if name == "rusci2023" else (20, 0, 10, 5))
        assert len({*split.train, *split.validation, *split.test, *split.unknown}) == 35
