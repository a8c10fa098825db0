"""The views of keywords, without a browser: buttons are clicked and messages sent from here."""

import base64
import io
from datetime import datetime

import numpy as np
import pytest
import soundfile

from edgelearn.data.audio import load_clips
from edgelearn.data.synthetic_words import WORDS, embedded_words
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.streaming import LongRecording, Occurrence
from edgelearn.keywords import Detection, Scores
from edgelearn.keywords.files import other_words, sample_embedder
from edgelearn.widgets.keywords import (
    Enrolment,
    KeywordsView,
    Microphone,
    label_rows,
    plot_det,
    plot_embeddings,
    plot_stream,
    principal_plane,
)

KNOWN = WORDS[:2]


def encode(samples, rate=16_000):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV")
    return file.getvalue()


@pytest.fixture(scope="module")
def embedder():
    return sample_embedder()


@pytest.fixture(scope="module")
def clips():
    """Clips of two words by one speaker: (2, 6, samples)."""
    return load_clips(embedded_words(2, 1, 6)).reshape(2, 6, -1)


@pytest.fixture
def enrolment(embedder):
    return Enrolment(embedder, other_words().only(WORDS[2:]).take(np.arange(0, 220, 3)))


def test_enrolling_and_forgetting(enrolment, clips):
    assert enrolment.listener is None and np.isnan(enrolment.rates()).all()
    with pytest.raises(DataError, match="No word"):
        enrolment.require()
    enrolment.enrol(KNOWN[0], list(clips[0, :1]))
    assert enrolment.listener.spotter.num_classes == 1 and not len(enrolment.known)
    enrolment.enrol(KNOWN[1], list(clips[1, :3]))
    assert len(enrolment.known) == 3 and enrolment.rates()[0] <= 0.01
    others = len(enrolment.unknown)
    enrolment.enrol(WORDS[2], list(clips[0, 4:]))  # one of the others
    assert len(enrolment.others) == len(enrolment.unknown) < others
    enrolment.forget(WORDS[2])
    assert len(enrolment.unknown) == others
    low, high = enrolment.score_range
    assert low <= enrolment.threshold <= high
    enrolment.forget(KNOWN[0])
    assert enrolment.vocabulary.words == KNOWN[1:]
    enrolment.forget(KNOWN[1])
    assert enrolment.listener is None


def test_what_cannot_be_enrolled_changes_nothing(enrolment, clips):
    enrolment.enrol(KNOWN[0], list(clips[0, :2]))
    before = enrolment.vocabulary
    for word, some in ((KNOWN[1], []), ("", list(clips[1])), (KNOWN[1], [0 * clips[1, 0]])):
        with pytest.raises(DataError):
            enrolment.enrol(word, some)
        assert enrolment.vocabulary is before


def upload(widget, *files):
    widget.value = [
        {"name": name, "type": "audio/wav", "size": len(content), "content": content, "last_modified": datetime.now()}
        for name, content in files
    ]


def say(microphone, clip, rate=48_000):
    """What the browser sends of a recording at `rate`."""
    microphone._receive(microphone, {"type": "begin"}, [])
    for block in np.array_split(clip.astype("<f4"), 11):
        microphone._receive(microphone, {"type": "samples", "rate": rate}, [memoryview(block.tobytes())])
    microphone._receive(microphone, {"type": "end"}, [])


def test_a_new_word_in_a_few_clicks(enrolment, clips):
    view = KeywordsView(enrolment)
    box = view.clips
    assert box.enrol.disabled and view.threshold.slider.disabled
    box.word.value = KNOWN[0]
    upload(box.upload, *((f"{i}.wav", encode(clip)) for i, clip in enumerate(clips[0, :2])))
    record = box.children[0].children[1]
    assert isinstance(record, Microphone)
    say(record, np.repeat(clips[0, 2], 3))  # crude, at three times the rate
    assert len(box.clips) == 3 and abs(len(box.clips[2]) - 16_000) < 5 and box.upload.value == ()
    box.enrol.click()
    assert enrolment.vocabulary.count(KNOWN[0]) == 3 and not box.clips and box.enrol.disabled
    assert "<td" in view._words.value and view._map.svg[:4] == view.threshold.curves.svg[:4] == "<svg"
    box.word.value = KNOWN[0]
    box.forget.click()
    assert enrolment.listener is None and view._map.layout.display == "none"


def test_clips_are_played_relabelled_and_deleted(enrolment, clips):
    box = KeywordsView(enrolment, suggestions=("sola", *KNOWN)).clips
    assert list(box.word.options) == list(dict.fromkeys(("sola", *KNOWN)))
    box.word.value = KNOWN[0]
    upload(box.upload, *((f"{i}.wav", encode(clip)) for i, clip in enumerate(clips[0, :3])))
    box.word.value = KNOWN[1]
    upload(box.upload, ("b.wav", encode(clips[1, 0])))
    rows = box.list.children
    assert [row.word.value for row in rows] == [KNOWN[0]] * 3 + [KNOWN[1]]
    sound = base64.b64decode(rows[1].children[1].value.split("base64,")[1].split("'")[0])
    samples, rate = soundfile.read(io.BytesIO(sound), dtype="float32")
    assert rate == 16_000 and np.abs(samples - clips[0, 1]).max() < 1e-3
    rows[2].word.value = KNOWN[1]  # it was said wrongly
    box.enrol.click()
    assert [enrolment.vocabulary.count(word) for word in KNOWN] == [2, 2] and not box.clips
    box.list.children[2].word.value = KNOWN[0]
    assert [enrolment.vocabulary.count(word) for word in KNOWN] == [3, 1]
    box.list.children[3].delete.click()
    assert enrolment.vocabulary.words == KNOWN[:1] and len(box.list.children) == 3
    box.list.children[0].word.value = ""
    assert "needs a name" in box.status.value and box.list.children[0].word.value == KNOWN[0]
    assert enrolment.vocabulary.count(KNOWN[0]) == 3


def test_words_are_saved_and_loaded(enrolment, clips, tmp_path):
    box = KeywordsView(enrolment).clips
    assert box.save.disabled
    box.file.value = str(tmp_path / "mine.safetensors")
    box.load.click()
    assert "There is no file" in box.status.value
    enrolment.enrol(KNOWN[0], list(clips[0, :2]))
    box.save.click()
    enrolment.forget(KNOWN[0])
    box.load.click()
    assert enrolment.vocabulary.count(KNOWN[0]) == 2 and not box.status.value and enrolment.listener is not None


def test_labels_of_words_that_follow_each_other_stand_in_rows():
    rows = label_rows([(0.0, "sola"), (0.1, "mare"), (0.2, "luna"), (3.0, "sola"), (3.05, "mare")], 4.0)
    assert rows == [0, 1, 2, 0, 1]


def test_errors_are_shown_and_clips_stay(enrolment, clips):
    box = KeywordsView(enrolment).clips
    upload(box.upload, ("noise.wav", b"nothing"))
    assert "noise.wav" in box.status.value and not box.clips
    upload(box.upload, ("a.wav", encode(clips[0, 0])))
    box.enrol.click()
    assert "name" in box.status.value and len(box.clips) == 1
    box.discard.click()
    assert not box.clips and not box.status.value
    box.word.value = "twice"
    upload(box.upload, *((name, encode(clips[0, 0])) for name in ("a.wav", "b.wav")))
    box.enrol.click()
    assert "same recording as clip 1" in box.status.value and "enrolled already" not in box.status.value
    box.discard.click()
    say(box.children[0].children[1], np.zeros(0))
    assert not box.clips


def test_the_slider_moves_the_rates(enrolment, clips):
    view = KeywordsView(enrolment).threshold
    enrolment.enrol(KNOWN[0], list(clips[0]))
    before = view.curves.value
    chosen = enrolment.threshold
    assert not view.slider.disabled and f"{chosen:.3f}" in view.rates.value
    view.slider.set_state({"index": view.slider.index})  # what a browser does when it shows the slider
    assert enrolment.threshold == chosen
    view.slider.value = 0
    assert enrolment.threshold == enrolment.listener.threshold == enrolment.score_range[0]
    assert enrolment.rates() == (1.0, 0.0)
    assert "False accepts: 100.0%" in view.rates.value and view.curves.value != before
    enrolment.threshold = 2.0
    assert view.slider.index == len(view.slider.texts) - 1 and enrolment.rates() == (0.0, 1.0)


def test_the_microphone_stops_where_nothing_can_be_heard(enrolment, clips, monkeypatch):
    box = KeywordsView(enrolment).listening
    sent = []
    monkeypatch.setattr(box.microphone, "send", lambda content, buffers=None: sent.append(content))
    box.microphone._receive(None, {"type": "begin"}, [])
    assert "No word" in box.status.value and not box.listening and sent == [{"type": "stop"}]


def test_words_are_heard(enrolment, clips):
    view = KeywordsView(enrolment)
    box = view.listening
    with pytest.raises(DataError, match="No word"):
        box.listen(clips[0, 0])
    for word, own in zip(KNOWN, clips, strict=True):
        enrolment.enrol(word, list(own[:4]))
    recording = LongRecording(embedded_words(2, 1, 6).take([4, 10, 5]), seed=2, pauses=(0.8, 1.2))
    samples = np.concatenate(list(recording))
    said = [o.word for o in recording.timeline]
    plain = view._map.value
    assert [d.word for d in box.listen(samples)] == said
    assert view._map.value != plain  # a star
    upload(box.upload, ("long.wav", encode(samples)))
    assert [d.word for d in box.detections] == said and said[0] in box._table.value
    upload(box.upload, ("short.wav", encode(samples[:100])))
    assert "too short" in box.status.value
    box.microphone._receive(None, {"type": "begin"}, [])
    block = memoryview(samples[: round(16_000 * recording.timeline[0].end) + 10_000].tobytes())
    box.microphone._receive(None, {"type": "samples", "rate": 16_000}, [block])
    enrolment.threshold = 3.0  # while it listens
    (heard,) = [detection.word for detection in box.detections]
    assert {bar.description: bar.value > bar.min for bar in box.bars.children}[heard]
    block = memoryview(samples.tobytes())
    box.microphone._receive(None, {"type": "samples", "rate": 16_000}, [block])
    assert len(box.detections) == 1
    box.microphone._receive(None, {"type": "error", "message": "gone"}, [])
    assert not box.listening


def test_principal_plane():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 2)) * [9, 3] @ np.linalg.qr(rng.normal(size=(7, 2)))[0].T + 5
    mean, plane = principal_plane(points)
    np.testing.assert_allclose((points - mean) @ plane @ plane.T + mean, points, atol=1e-9)
    assert np.var((points - mean) @ plane[:, 0]) > np.var((points - mean) @ plane[:, 1])


def test_figures():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(6, 5)), np.arange(6) % 2
    axes = plot_embeddings(points, labels, KNOWN, rng.normal(size=(9, 5)), points[0]).axes[0]
    assert [len(c.get_offsets()) for c in axes.collections] == [9, 3, 3, 1]
    assert plot_embeddings(points[:1], labels[:1], KNOWN[:1]).axes
    with pytest.raises(DataError, match="clips"):
        plot_embeddings(points[:0], labels[:0], KNOWN)
    left, right = plot_det(np.array([0.5, 0.9]), np.array([0.1, 0.6]), 0.55).axes
    assert right.texts[0].get_text() == "50.0 %, 50.0 %" and len(left.lines) == 3
    scores = Scores(np.arange(5.0), np.zeros((5, 1)), np.linspace(0, 1, 5))
    axes = plot_stream(scores, 0.5, [Detection("sola", 3.0, 0.75)], [Occurrence("sola", 2.0, 2.5)]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["sola", "sola"]
