"""Detection of tones in long recordings: scores, triggers, memory, and evaluation."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset, decode
from edgelearn.data.features import BC_RESNET
from edgelearn.errors import DataError, RunError
from edgelearn.experiments.keywords import streaming
from edgelearn.keywords import Detection, Scores, ScoreStream, Trigger
from edgelearn.keywords.learners import Prototypes, Spotter

RATE, WORDS = 16_000, ("low", "high", "other")


def tone(hertz, first=0.3, last=0.8):
    time = np.arange(RATE) / RATE
    return (0.5 * np.sin(2 * np.pi * hertz * time) * ((time >= first) & (time < last))).astype(np.float32)


CLIPS = ClipDataset(
    "tones", "folder", "Tones.", WORDS, np.arange(9) % 3, [""] * 9, [tone((400, 2500, 1100)[i % 3]) for i in range(9)]
)


@pytest.fixture
def spotter():
    """Knows the first two tones by the loudness of their bands."""

    def embed(features):
        return np.append(np.exp(features).mean(1), np.full((len(features), 1), 0.3), 1)  # quiet isn't alike

    embedder = SimpleNamespace(front_end=BC_RESNET, seconds=1.0, embed=embed)
    known = embed(BC_RESNET(np.stack([tone(400), tone(2500)])))
    return Spotter(embedder, Prototypes(known, "cosine"))


def test_words_are_detected_once_and_in_time(spotter):
    recording = streaming.LongRecording(CLIPS, WORDS[:2], seed=1, pauses=(1.0, 2.0))
    stream, trigger = ScoreStream(spotter), Trigger(WORDS[:2], 0.9, 1.6)  # as long as a clip has a bit of the tone
    found = [d for piece in recording for d in trigger.push(stream.push(piece))] + trigger.push(stream.finish())
    report = streaming.evaluate_detections(found, recording.timeline, recording.seconds)
    assert report.hit_rate == 1 and report.false_alarms == 0 and report.occurrences == 6
    assert -0.5 < report.delay < 0.75
    assert "6 of 6 keywords" in str(report)
    nothing = streaming.evaluate_detections(found, [], 60.0)
    assert not nothing.delays and nothing.false_alarms_per_hour == 360


@pytest.mark.parametrize(("cut", "batch"), [(400, 1), (RATE, 1), (RATE, 4), (10 * RATE, 16)])
def test_scores_are_those_of_the_whole_wherever_it_is_cut(spotter, cut, batch):
    samples = np.concatenate(list(streaming.LongRecording(CLIPS.take([0, 1]), seed=3)))
    stream = ScoreStream(spotter, smoothing=0.2, batch=batch)
    pieces = [stream.push(samples[start : start + cut]) for start in range(0, len(samples), cut)]
    found = Scores.join([*pieces, stream.finish()])
    frames = BC_RESNET(samples[None])[0]
    plain = np.stack([frames[start : start + 101] for start in range(0, len(frames) - 100, 10)])
    plain = spotter.scores(plain)
    mean = np.concatenate([plain[:1], (plain[1:] + plain[:-1]) / 2])
    np.testing.assert_allclose(found.words, mean, atol=1e-4)
    np.testing.assert_allclose(found.times, 1.015 + 0.1 * np.arange(len(plain)))


@pytest.mark.parametrize(("hop", "clips"), [(0.1, 5), (0.001, 50), (0.016, 25), (0.9, 1)])
def test_scores_are_smoothed_over_seconds_whatever_the_hop(spotter, hop, clips):
    """Clips are a whole number of frames of 10 ms apart."""
    assert ScoreStream(spotter, hop, 0.5)._recent.maxlen == clips


def test_however_long_it_takes_the_memory_of_a_moment(spotter):
    held = ScoreStream(spotter, batch=8)
    for _ in range(5):
        held.push(np.zeros(10 * RATE, np.float32))
        assert len(held._frames) < 101 + 8 * 10 and len(held._stream._held) < 1_000 and len(held._recent) <= 5


def scores(known, words=None):
    known = np.array(known, np.float32)
    words = np.stack([known, known - 1], 1) if words is None else np.array(words, np.float32)
    return Scores(0.1 * np.arange(len(known)), words, known)


def test_a_word_is_detected_once_when_its_score_reaches_the_threshold():
    trigger = Trigger(WORDS[:2], 0.5, refractory=0.35)
    assert trigger.push(scores([0.1, 0.6])) == [Detection("low", pytest.approx(0.1), pytest.approx(0.6))]
    later = Scores(0.2 + 0.1 * np.arange(6), np.tile([0.7, 0.9], (6, 1)), np.array([0.8, 0.9, 0.9, 0.9, 0.4, 0.5]))
    assert trigger.push(later) == [Detection("high", pytest.approx(0.5), pytest.approx(0.9))]


def test_what_counts_as_a_hit():
    timeline = [streaming.Occurrence("low", 1.0, 1.5), streaming.Occurrence("high", 3.0, 3.5)]
    times = ("low", 1.7), ("low", 1.9), ("high", 4.5), ("low", 3.2)
    report = streaming.evaluate_detections([Detection(word, time, 1.0) for word, time in times], timeline, 1800.0)
    assert report == streaming.DetectionReport(2, (pytest.approx(0.2),), 3, 1800.0)
    assert report.hit_rate == 0.5 and report.false_alarms_per_hour == 6


def test_a_sweep_trades_misses_for_false_alarms():
    timeline = [streaming.Occurrence("low", 0.0, 0.3)]
    found = streaming.sweep(scores([0.2, 0.8, 0.1, 0.5, 0.1]), WORDS[:2], timeline, 0.5, [0.4, 0.7, 0.9], 0.0, 0.05)
    assert [(len(j.delays), j.false_alarms) for j in found] == [(1, 1), (1, 0), (0, 0)]


def test_the_same_seed_makes_the_same_recording(tmp_path):
    recording = streaming.LongRecording(CLIPS, seed=5)
    pieces = list(recording)
    samples = np.concatenate(pieces)
    assert len(pieces) == len(CLIPS) + 1 and len(samples) == round(recording.seconds * RATE)
    np.testing.assert_array_equal(samples, np.concatenate(list(streaming.LongRecording(CLIPS, seed=5))))
    assert len(np.concatenate(list(streaming.LongRecording(CLIPS, seed=6)))) != len(samples)
    for said in recording.timeline:
        assert said.end - said.start == pytest.approx(0.5, abs=0.02)
        loud = samples[round((said.start + 0.02) * RATE) : round((said.end - 0.02) * RATE)]
        quiet = samples[round((said.end + 0.02) * RATE) : round((said.end + 0.2) * RATE)]
        assert np.std(loud) > 0.3 > 0.02 > np.std(quiet) > 0
    recording.write(tmp_path / "long.wav")
    np.testing.assert_allclose(decode(tmp_path / "long.wav", "long"), samples, atol=1e-4)


def test_a_recording_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "long.wav").write_bytes(b"before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"long\.wav"):
        streaming.LongRecording(CLIPS).write(tmp_path / "long.wav")
    assert os.listdir(tmp_path) == ["long.wav"] and (tmp_path / "long.wav").read_bytes() == b"before"


def test_where_the_word_is():
    assert streaming.speech_interval(tone(500, 0.25, 0.5)) == pytest.approx((0.25, 0.5), abs=0.011)
    assert streaming.speech_interval(np.zeros(RATE, np.float32)) == (0, 1), "a silent clip is all word"


def test_labels_as_audacity_has_them(tmp_path):
    timeline = [streaming.Occurrence("low", 1.0, 1.5), streaming.Occurrence("two words", 3.25, 3.5)]
    streaming.write_labels(tmp_path / "long.txt", timeline)
    assert streaming.read_labels(tmp_path / "long.txt") == timeline
    (tmp_path / "other.txt").write_text("1.0\t2.0\tlow\n1.0 2.0 low\n")
    with pytest.raises(DataError, match=r"Line 2 of .*other\.txt"):
        streaming.read_labels(tmp_path / "other.txt")


def test_what_cannot_be(spotter):
    with pytest.raises(DataError, match="hop"):
        ScoreStream(spotter, hop=0)
    with pytest.raises(DataError, match="45"):
        streaming.LongRecording(CLIPS, level=45)
    for settings in (np.nan,), (0.5, -1):
        with pytest.raises(DataError, match="threshold"):
            Trigger(WORDS, *settings)
    with pytest.raises(DataError, match=r"\(2, 1\)"):
        streaming.LongRecording(CLIPS, pauses=(2, 1))
