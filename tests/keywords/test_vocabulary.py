from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.data.features import BC_RESNET, LogMel
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.interop import safetensors
from edgelearn.keywords.learners import Prototypes
from edgelearn.keywords.vocabulary import Vocabulary, held_out_scores, threshold_for

FRONT_END = LogMel(window=400, hop=800, fft=512, bands=12)
SHAPE = FRONT_END.shape(16_000)


def embedder(front_end=FRONT_END, seconds=1.0):
    """Each band's mean."""
    network = SimpleNamespace(name="means")
    return SimpleNamespace(
        front_end=front_end, seconds=seconds, head=None, network=network, embed=lambda features: features.mean(1)
    )


def clips(band, count, seed=0):
    features = np.random.default_rng([seed, band]).normal(0, 0.1, (count, *SHAPE)).astype(np.float32)
    features[:, :, band] += 1
    return features


@pytest.fixture
def words():
    return Vocabulary.empty(embedder()).add("one", clips(1, 3)).add(" two ", clips(2, 2)).add("three", clips(3, 1))


def test_words_are_enrolled(words):
    assert words.words == ("one", "two", "three") and [words.count(word) for word in words.words] == [3, 2, 1]
    spotter = words.add("two", clips(2, 1, seed=5)).enrol(embedder())
    assert spotter.scores(np.concatenate([clips(band, 4, seed=1) for band in (3, 1, 2)])).argmax(1).tolist() == (
        [2] * 4 + [0] * 4 + [1] * 4
    )
    fewer = words.without("one")
    assert fewer.words == ("two", "three") and fewer.labels.tolist() == [0, 0, 1] and fewer.count("one") == 0
    assert fewer.enrol(embedder()).scores(clips(3, 1, seed=1)).argmax() == 1


def test_the_file_says_it_all(words, tmp_path):
    path = tmp_path / "my-words"
    words.save(path)
    found = Vocabulary.load(path)
    assert (found.words, found.front_end, found.seconds) == (words.words, words.front_end, words.seconds)
    np.testing.assert_array_equal(found.features, words.features)
    np.testing.assert_array_equal(found.labels, words.labels)
    assert [file.name for file in tmp_path.iterdir()] == ["my-words"]


def test_a_file_that_is_something_else(words, tmp_path):
    path = tmp_path / "my-words"
    with pytest.raises(FormatError, match="my-words"):
        Vocabulary.load(path)
    path.write_bytes(safetensors.to_bytes({"features": clips(1, 1)}))
    with pytest.raises(FormatError, match="my-words"):
        Vocabulary.load(path)
    words.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(FormatError, match="my-words"):
        Vocabulary.load(path)
    path.write_bytes(whole.replace(b'\\"version\\": 1', b'\\"version\\": 9'))
    with pytest.raises(FormatError, match=r"version 9.*version 1"):
        Vocabulary.load(path)
    path.write_bytes(whole.replace(b'[\\"one\\", \\"two\\"', b'[\\"two\\", \\"two\\"'))
    with pytest.raises(FormatError, match="two, two"):
        Vocabulary.load(path)


def test_features_that_are_no_numbers_are_refused(words):
    with pytest.raises(FormatError, match="NaN"):
        words.add("four", clips(1, 1) * np.nan)


def test_a_file_that_cannot_be_written_leaves_the_old_one(words, tmp_path):
    with pytest.raises(RunError, match="nowhere"):
        words.save(tmp_path / "nowhere" / "my-words")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda words: words.add("  ", clips(1, 1)), "name"),
        (lambda words: words.add("four", clips(1, 0)), "four"),
        (lambda words: words.add("four", np.zeros((1, 5, 5))), r"not \(1, 5, 5\)"),
        (lambda words: words.add("four", words.features[[1]]), "Clip 1 .*'one'"),
        (lambda words: words.add("four", clips(7, 1)[[0, 0]]), "Clip 2 .*'four'"),
        (lambda words: words.without("four"), "'four'.* one, two, three"),
        (lambda words: words.enrol(embedder(BC_RESNET)), "means"),
        (lambda words: words.enrol(embedder(seconds=2.0)), "1 s"),
        (lambda words: Vocabulary.empty(embedder()).enrol(embedder()), "No word"),
    ],
)
def test_what_cannot_be(words, change, problem):
    with pytest.raises(DataError, match=problem):
        change(words)


def test_the_threshold_lets_so_many_others_pass():
    unknown = np.arange(100) / 100
    for share in (0.0, 0.01, 0.05):
        threshold = threshold_for(unknown, share)
        assert (unknown >= threshold).mean() == pytest.approx(share)
    assert (unknown >= threshold_for(unknown, 1.0)).mean() == pytest.approx(0.99)
    with pytest.raises(DataError, match="other words"):
        threshold_for([])


def test_every_clip_is_scored_by_what_learned_without_it(words):
    found = held_out_scores(words, embedder())
    assert len(found) == 5  # not the word with a single clip
    first = Prototypes(np.stack([words.features[own].mean((0, 1)) for own in ([1, 2], [4], [5])]), "cosine")
    expected = first.known_score(words.features[[0, 3]].mean(1))
    np.testing.assert_allclose(found[:2], expected, atol=1e-3)
    assert not len(held_out_scores(Vocabulary.empty(embedder()), embedder()))
