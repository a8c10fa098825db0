import numpy as np
import pytest

from edgelearn.data.audio import load_clips
from edgelearn.data.features import BC_RESNET
from edgelearn.data.synthetic_words import SOUNDS, WORDS, embedded_words
from edgelearn.errors import DataError


def test_the_sample_says_what_it_is():
    dataset = embedded_words(3, 2, 4)
    assert dataset.origin == "embedded sample" and "synthesised" in dataset.description
    assert dataset.class_names == WORDS[:3] and len(dataset) == 24
    assert np.unique(dataset.speakers).size == 2
    assert len(set(WORDS)) == len(WORDS) and set("".join(WORDS)) <= set(SOUNDS)
    with pytest.raises(DataError, match=r"1 to 24 .*25"):
        embedded_words(25)


def test_clips_depend_on_what_they_are_alone():
    few, many = embedded_words(2, 2, 2), embedded_words(4, 3, 5)
    at = np.flatnonzero((many.words == WORDS[1]) & (many.speakers == few.speakers[-1]))[1]
    np.testing.assert_array_equal(few.clip(7), many.clip(int(at)))
    assert (embedded_words(2, 2, 2, seed=1).clip(7) != few.clip(7)).any()


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_all_words_are_sound(rate):
    dataset = embedded_words(len(WORDS), 3, 1)
    clips = load_clips(dataset, rate=rate)
    assert clips.shape == (len(dataset), rate) and np.abs(clips).max() <= 1 and np.abs(clips).max(1).min() > 0.1
    assert len(np.unique(clips, axis=0)) == len(clips)


def portrait(features):
    """Twelve frames of where a clip is loud."""
    loudness = features.mean(1)
    loud = np.flatnonzero(loudness > (loudness.min() + loudness.max()) / 2)
    frames = features[np.linspace(loud[0], loud[-1], 12).round().astype(int)]
    return (frames - frames.mean()).ravel()


def test_words_are_told_apart_best_within_a_speaker():
    """The nearest mean of two takes tells twelve words of the same speaker, and fewer of another one's."""
    words, speakers = 12, 4
    features = BC_RESNET(load_clips(embedded_words(words, speakers, takes=4)))
    clips = np.array([portrait(one) for one in features]).reshape(words, speakers, 4, -1)
    means = clips[:, :, :2].mean(2)
    right = np.empty((speakers, speakers))
    for speaker in range(speakers):
        for other in range(speakers):
            gap = clips[:, speaker, 2:, None] - means[None, None, :, other]
            right[speaker, other] = np.mean(np.square(gap).sum(-1).argmin(-1) == np.arange(words)[:, None])
    own, others = right.diagonal().mean(), right[~np.eye(speakers, dtype=bool)].mean()
    assert own > 0.9 and 0.3 < others < own, (own, others)
