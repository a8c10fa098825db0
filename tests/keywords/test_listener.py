"""A listener of tones: from blocks, files and a microphone to detections."""

from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from edgelearn.data import audio
from edgelearn.data.audio import ClipDataset
from edgelearn.data.features import BC_RESNET
from edgelearn.errors import DataError
from edgelearn.keywords import Listener, OtherWords, Vocabulary
from edgelearn.keywords.listener import Scores, Trigger, threshold_per_hour
from edgelearn.keywords.vocabulary import threshold_for

RATE, HERTZ = 16_000, {"low": 400, "high": 2500, "other": 1100}


def embed(features):
    """Loudness of each band, and a constant: quiet clips are like no word."""
    return np.append(np.exp(features).mean(1), np.full((len(features), 1), 0.3), 1)


EMBEDDER = SimpleNamespace(
    front_end=BC_RESNET, seconds=1.0, head=None, embed=embed, features=BC_RESNET, network=SimpleNamespace(name="bands")
)


def tone(word, seconds=1.0, level=0.5):
    time = np.arange(round(seconds * RATE)) / RATE
    inside = (time >= 0.3) & (time < 0.8)
    return (level * np.sin(2 * np.pi * HERTZ[word] * time) * inside).astype(np.float32)


@pytest.fixture(scope="module")
def vocabulary():
    words = Vocabulary.empty(EMBEDDER)
    for word in ("low", "high"):
        words = words.add(word, BC_RESNET(np.stack([tone(word), tone(word, level=0.4)])))
    return words


@pytest.fixture
def listener(vocabulary):
    return Listener(EMBEDDER, vocabulary, threshold=0.9, refractory=1.6)


@pytest.fixture(scope="module")
def recording():
    """Each word after a second of silence."""
    return np.concatenate([np.append(np.zeros(RATE, np.float32), tone(word, 1.5)) for word in ("high", "other", "low")])


def words(detections):
    return [detection.word for detection in detections]


def test_blocks(listener, recording):
    detections = list(listener.listen(np.array_split(recording, 40)))
    assert words(detections) == ["high", "low"] and listener.seconds == 7.5
    assert 1.3 < detections[0].time < 2.5 and 6.3 < detections[1].time < 7.5
    assert listener.heard.shape == (41,)
    assert list(listener.listen([recording])) == detections  # from the beginning again


def test_pushed_samples(listener, recording):
    pushed = [listener.push(block) for block in np.array_split(recording, 40)]
    listener.reset()
    assert [d for block in pushed for d in block][:1] == listener.push(recording)[:1]
    assert listener.scores.words.shape == (len(listener.scores.times), 2)
    listener.reset()
    listener.threshold = 2.0
    assert not listener.push(recording) and not listener.finish()


def test_a_file(listener, recording, tmp_path):
    soundfile.write(tmp_path / "long.wav", recording, RATE, subtype="FLOAT")
    assert list(listener.listen_to_file(tmp_path / "long.wav")) == list(listener.listen([recording], batch=8))


def test_a_microphone_is_released_when_the_caller_stops(listener, recording, monkeypatch):
    asked, closed = [], []

    def blocks(rate, name):
        asked.append((rate, name))
        try:
            while True:
                yield from np.array_split(recording, 75)
        finally:
            closed.append(True)

    monkeypatch.setattr(audio, "microphone_blocks", blocks)
    detections = listener.listen_to_microphone("usb")
    assert next(detections).word == "high" and asked == [(RATE, "usb")] and not closed
    detections.close()
    assert closed and listener.seconds < 3


def test_the_threshold_is_set_by_other_words(vocabulary):
    items = [tone(word, level=level) for level in (0.1, 0.3) for word in HERTZ]
    clips = ClipDataset("tones", "folder", "Tones.", tuple(HERTZ), np.arange(6) % 3, [""] * 6, items)
    others = OtherWords.load(clips, EMBEDDER)
    listener = Listener(EMBEDDER, vocabulary, others=others, false_accepts=0.5)
    expected = listener.spotter.known_score(BC_RESNET(np.stack(items[2::3])))  # not those of enrolled words
    assert np.array_equal(listener.other_scores, expected)
    assert listener.threshold == threshold_for(expected, 0.5)


@pytest.mark.parametrize("refractory", (0.0, 0.35, 1.0))
def test_the_lowest_threshold_for_a_rate(refractory):
    """Against all thresholds, one by one."""
    rng = np.random.default_rng(2)
    known = rng.normal(size=600).astype(np.float32)
    scores = Scores(0.1 * np.arange(600), np.zeros((600, 2)), known)
    counts = {float(t): len(Trigger(["a", "b"], t, refractory).push(scores)) for t in [*known, known.max() + 1]}
    for allowed in (0, 1, 7, 600):
        found = threshold_per_hour(scores, 60.0, 60 * allowed, refractory)
        assert len(Trigger(["a", "b"], found, refractory).push(scores)) <= allowed
        assert all(count > allowed for threshold, count in counts.items() if threshold < found)
    for wrong in (-1.0, np.nan):
        with pytest.raises(DataError):
            threshold_per_hour(scores, 60.0, wrong)


def test_surroundings_set_the_threshold(listener, recording, tmp_path):
    """Tones of no word are heard once in 4 seconds; then the words are still detected, and these tones aren't."""
    silence = np.zeros(2 * RATE, np.float32)
    surroundings = np.concatenate([np.append(silence, tone("other", 2.0, 0.1 * n)) for n in range(1, 6)])
    assert listener.calibrate([np.array_split(surroundings, 7), [surroundings]], per_hour=0) == 40.0
    strict = listener.threshold
    found = list(listener.listen([np.concatenate([recording, surroundings])]))
    assert set(words(found)) == {"high", "low"} and max(detection.time for detection in found) < 9.0
    assert not list(listener.listen([surroundings]))
    soundfile.write(tmp_path / "room.wav", surroundings, RATE, subtype="FLOAT")
    listener.calibrate_by_files([tmp_path / "room.wav"], per_hour=3 * 3600 / 20)
    assert listener.threshold < strict and 1 <= len(list(listener.listen([surroundings], batch=8))) <= 3
    with pytest.raises(DataError, match="longer recording"):
        listener.calibrate([])


def test_what_cannot_be(listener, vocabulary, recording):
    with pytest.raises(DataError, match="threshold"):
        Listener(EMBEDDER, vocabulary)
    with pytest.raises(DataError, match="hop"):
        Listener(EMBEDDER, vocabulary, threshold=0.5, hop=0)
    with pytest.raises(DataError, match="No word"):
        Listener(EMBEDDER, Vocabulary.empty(EMBEDDER), threshold=0.5)
    with pytest.raises(DataError, match=r"0\.50 s"):
        list(listener.listen([recording[: RATE // 2]]))
