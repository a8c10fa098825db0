"""Who is speaking: tones that are told apart, corrected and kept; and people, where there are recordings."""

import os

import numpy as np
import pytest
import soundfile

from edgelearn.cli import main
from edgelearn.data import audio
from edgelearn.data.audio import load_clips
from edgelearn.data.speech_commands import load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import check_disjoint
from edgelearn.experiments.keywords.episodes import ARABIC
from edgelearn.experiments.keywords.people import ARABIC_TEST_SPEAKERS, arabic_parts, english_parts
from edgelearn.keywords import NearestWindows, SpeakerListener, Vocabulary, WhitenedWindows, windows
from edgelearn.keywords.files import SPEAKERS
from tests.keywords.test_listener import EMBEDDER, RATE

HERTZ = {"Ada": 300, "Bo": 1500, "Cy": 1300}
needs_data = pytest.mark.skipif(not os.environ.get("EDGELEARN_DATA"), reason="needs EDGELEARN_DATA")


def hum(name, seconds):
    """A tone in faint noise."""
    time = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(HERTZ[name]).normal(0, 1e-3, len(time))
    return (0.3 * np.sin(2 * np.pi * HERTZ[name] * time) + noise).astype(np.float32)


@pytest.fixture
def listener():
    speakers = Vocabulary.empty(EMBEDDER)
    for name in ("Ada", "Bo"):
        speakers = speakers.add(name, windows(hum(name, 3.01), EMBEDDER, 0.37))
    return SpeakerListener(EMBEDDER, speakers, threshold=0.7)


def test_windows_are_named_as_they_end(listener, tmp_path, monkeypatch):
    sound = np.concatenate([hum("Bo", 3), hum("Ada", 3)])
    found = list(listener.listen(np.array_split(sound, 31)))
    times = np.array([each.time for each in found])
    np.testing.assert_allclose(np.diff(times), 0.5, atol=1e-6)
    named = [(each.time, each.speaker) for each in found if not 3 < each.time < 4]  # within one speaker
    assert len(named) > 6 and all(speaker == ("Bo" if time <= 3 else "Ada") for time, speaker in named)
    soundfile.write(tmp_path / "both.wav", sound, RATE, subtype="FLOAT")
    assert [each.speaker for each in listener.listen_to_file(tmp_path / "both.wav")] == [e.speaker for e in found]
    monkeypatch.setattr(audio, "microphone_blocks", lambda rate, name: (block for block in [sound]))
    assert [each.speaker for each in listener.listen_to_microphone()] == [e.speaker for e in found]
    assert {each.speaker for each in listener.listen([np.zeros(3 * RATE, np.float32)])} == {""}


def test_a_correction_counts_from_the_next_window_on_and_is_kept(listener, tmp_path):
    with pytest.raises(DataError, match="No window"):
        listener.learn("Cy")
    blocks = np.array_split(hum("Cy", 5), 50)
    before = {each.speaker for each in listener.listen(blocks[:20])}
    listener.learn("Cy")
    assert "Cy" not in before and {each.speaker for each in listener.listen(blocks)} == {"Cy"}
    listener.speakers.save(tmp_path / "speakers")
    again = SpeakerListener(EMBEDDER, Vocabulary.load(tmp_path / "speakers"))
    assert {each.speaker for each in again.listen(blocks)} == {"Cy"}
    assert {each.speaker for each in again.listen([hum("Ada", 3)])} == {"Ada"}


def test_directions_in_which_a_speaker_differs_count_less():
    """Three speakers, told apart by small differences beside a large one within each of them."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    points = np.zeros((120, 8))
    points[:, 0] = 4
    points[np.arange(120), 1 + labels] += 1.0
    points[:, 4:6] += rng.normal(0, 2.0, (120, 2))
    points += rng.normal(0, 0.2, points.shape)
    shares = []
    for learner in (NearestWindows(), WhitenedWindows()):
        known = learner.classify(EMBEDDER, points[:30], labels[:30], 3)
        shares.append((known.scores(points[30:]).argmax(1) == labels[30:]).mean())
        cosines = known.known_score(points[:30])
        assert cosines.max() <= 1 + 1e-6 and cosines.min() > 0.5, "how well it is known stays a cosine"
    assert shares[1] > shares[0] + 0.03 and shares[1] > 0.9
    single = WhitenedWindows().classify(EMBEDDER, points[:3], labels[:3], 3)
    assert single.scores(points[:3]).argmax(1).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="shrinkage"):
        WhitenedWindows(shrinkage=0)


def test_too_little_speech():
    with pytest.raises(DataError, match=r"0\.50 s"):
        windows(hum("Ada", 0.5), EMBEDDER)


def test_the_shipped_network_is_small():
    assert SPEAKERS.stat().st_size < 200_000


@needs_data
def test_parts_share_neither_words_nor_speakers():
    for parts in (arabic_parts(), english_parts()):
        check_disjoint(parts.all_train, parts.test)
        check_disjoint(parts.train, parts.validation)
        check_disjoint(parts.validation, parts.test)
        assert set(parts.validation.words) | set(parts.train.words) <= set(parts.all_train.words)


@needs_data
def test_people_who_were_never_heard(tmp_path, monkeypatch, capsys):
    clips, chosen = load_named(ARABIC), ARABIC_TEST_SPEAKERS[:5]
    monkeypatch.chdir(tmp_path)
    texts = []
    for name in chosen:
        own = load_clips(clips, np.flatnonzero(clips.speakers == name)[::15][:16])  # of all words
        soundfile.write(f"{name}.wav", own[:10].ravel(), RATE)
        assert main(["keywords", "enrol-speaker", name, f"{name}.wav", "--into", "people"]) == 0
        texts.append(own[10:].ravel())
    soundfile.write("all.wav", np.concatenate(texts), RATE)
    lines = [f"{6 * k}\t{6 * k + 6}\t{name}\n" for k, name in enumerate(chosen)]
    (tmp_path / "all.txt").write_text("".join(lines))
    capsys.readouterr()
    asked = ["keywords", "speakers", "all.wav", "--enrolled", "people", "--labels", "all.txt", "--into", "learned"]
    assert main([*asked, "--hop", "1"]) == 0
    wrong, _, heard = capsys.readouterr().out.splitlines()[-1].split()[:3]
    assert int(heard) >= 29 and int(wrong) <= 4
    assert len(Vocabulary.load("learned").labels) == len(Vocabulary.load("people").labels) + int(heard)
