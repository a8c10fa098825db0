"""edgelearn keywords, through `main`, with synthesised clips."""

import signal

import numpy as np
import pytest
import soundfile

from edgelearn.cli import main
from edgelearn.data import audio
from edgelearn.data.synthetic_words import WORDS, embedded_words
from edgelearn.experiments.claims import Verdict
from edgelearn.experiments.keywords import WordSplit, embedding, episodes, which_set
from edgelearn.experiments.keywords.streaming import read_labels
from edgelearn.keywords.vocabulary import Vocabulary


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(word, count, rate=16_000):
    """`count` clips of a word as files."""
    clips = embedded_words(4, 1, 6).only([word])
    names = [f"{word}{number}.wav" for number in range(count)]
    for number, name in enumerate(names):
        soundfile.write(name, clips.clip(number, rate), rate)
    return names


def test_enrol_and_listen(home, capsys, said):
    for word in WORDS[:2]:
        assert main(["keywords", "enrol", word, *record(word, 3, 22_050), "--into", "my-words"]) == 0
    text = capsys.readouterr().out
    assert "trained on recordings of people" in text and "my-words: sola (3 clips), mitu (3 clips)" in text
    compose = ["--speaker", "synthesised00", "--skip", "3", "--count", "1", "--seed", "1"]
    assert f"long.wav, long.txt: {len(WORDS)} words" in said("keywords", "compose", "long.wav", *compose)
    text = said("keywords", "listen", "long.wav", "--words", "my-words", "--labels", "long.txt")
    detected = [(float(line.split()[0]), line.split()[2]) for line in text.splitlines() if " s  " in line]
    timeline = [occurrence for occurrence in read_labels("long.txt") if occurrence.word in WORDS[:2]]
    assert [word for _, word in detected] == [occurrence.word for occurrence in timeline]
    assert all(0 < time - occurrence.start < 2 for (time, _), occurrence in zip(detected, timeline, strict=True))
    assert "2 of 2 keywords" in text and "0 false alarms" in text
    text = said("keywords", "listen", "long.wav", "--words", "my-words", "--threshold", "1.1")
    assert "Threshold: 1.100" in text and " s  " not in text
    assert main(["keywords", "compose", "room.wav", "--speaker", "synthesised01", "--count", "1", "--seed", "2"]) == 0
    room = ["--surroundings", "room.wav", "--false-accepts-per-hour"]
    for per_hour, remark in (("0", False), ("1", True), ("100000", False)):
        text = said("keywords", "listen", "long.wav", "--words", "my-words", *room, per_hour)
        assert f"{per_hour} false accepts an hour" in text and ("record 1.0 hours" in text) == remark
    for options in ([*room[2:], "1"], [*room, "1", "--threshold", "0.5"]):
        assert main(["keywords", "listen", "long.wav", "--words", "my-words", *options]) == 2
        assert "--surroundings" in capsys.readouterr().err
    assert said("keywords", "words", "my-words", "--forget", "sola") == "my-words: mitu (3 clips)\n"


def test_what_goes_wrong_leaves_the_words_as_they_were(home, capsys):
    assert main(["keywords", "enrol", "sola", *record("sola", 2), "--into", "my-words"]) == 0
    before = (home / "my-words").read_bytes()
    (home / "broken.wav").write_bytes(b"RIFF")
    soundfile.write("short.wav", np.zeros(8_000, np.float32), 16_000)
    for words, problem in (
        (["enrol", "mitu", "broken.wav", "--into", "my-words"], "broken.wav"),
        (["enrol", "mitu", "missing.wav", "--into", "my-words"], "missing.wav"),
        (["enrol", "mitu", "sola0.wav", "short.wav", "--into", "my-words"], "Clip 2 of 2"),
        (["enrol", " ", "sola0.wav", "--into", "my-words"], "name"),
        (["enrol", "mitu", "sola0.wav", "--into", "sola0.wav"], "sola0.wav"),
        (["enrol", "mitu", "sola0.wav", "--into", "nowhere/words"], "nowhere"),
        (["enrol", "mitu", "sola0.wav", "--into", "w", "--network", "sola0.wav"], "sola0.wav"),
        (["words", "my-words", "--forget", "mitu"], "'mitu'"),
        (["listen", "missing.wav", "--words", "my-words"], "missing.wav"),
        (["listen", "sola0.wav", "--words", "nothing"], "nothing"),
        (["listen", "sola0.wav", "--words", "my-words", "--learner", "fine-tune"], "'sola'"),
        (["listen", "short.wav", "--words", "my-words", "--threshold", "1"], "0.50 s"),
        (["listen", "sola0.wav", "--words", "my-words", "--data", "nowhere"], "nowhere"),
        (["listen", "sola0.wav", "--words", "my-words", "--others", "nowhere"], "nowhere"),
        (["listen", "sola0.wav", "--words", "my-words", "--labels", "my-words"], "my-words"),
        (["compose", "long.wav", "--speaker", "nobody"], "synthesised00"),
        (["compose", "long.wav", "--speaker", "synthesised00", "--skip", "99"], "--skip 99"),
    ):
        assert main(["keywords", *words]) == 1, words
        assert problem in capsys.readouterr().err
    assert (home / "my-words").read_bytes() == before and not (home / "w").exists()
    assert np.array_equal(Vocabulary.load("my-words").labels, [0, 0])


def test_train_and_evaluate(home, capsys, monkeypatch, said, refused):
    clips = embedded_words(4, 2, 6)
    task = embedding.TaskData((clips.only(WORDS[:2]),), clips.only(WORDS[2:4]))
    monkeypatch.setitem(embedding.TASKS, "tiny", lambda config: task)
    small = ["--width", "0.125", "--size", "16", "--epochs", "1", "--no-reversed", "--noise", "0"]
    small += ["--episodes", "2", "--runs", "runs"]
    monkeypatch.setattr(embedding, "PROTOCOLS", (("same", 1),))
    text = said("keywords", "train", "tiny", *small)
    assert "nearest-mean" in text
    (run,) = (home / "runs").iterdir()
    for number, (word, speaker) in enumerate(zip(clips.words.tolist(), clips.speakers.tolist(), strict=True)):
        (home / "clips" / word).mkdir(parents=True, exist_ok=True)
        soundfile.write(home / "clips" / word / f"{speaker}_nohash_{number}.wav", clips.clip(number), 16_000)
    (home / "clips" / "sola" / "broken.wav").write_bytes(b"RIFF")
    asked = ["clips", "--num-classes", "2", "--shots", "1", "--queries", "3", "--episodes", "5"]
    text = said("keywords", "evaluate", *asked, "--network", str(run))
    assert run.name in text and "nearest-mean" in text and "5 episodes" in text
    assert "skipped clips/sola/broken.wav: clips/sola/broken.wav cannot be read as sound" in text
    refused("clips", "keywords", "evaluate", *asked, "--network", str(home / "clips"))
    refused(" 4 ", "keywords", "evaluate", *asked[:1], "--num-classes", "4", "--shots", "1", "--queries", "3")
    assert main(["keywords", "check", str(run)]) == 1
    assert run.name in capsys.readouterr().err
    refused("epochs", "keywords", "train", "--resume", "--runs", "runs", "--epochs", "3")
    refused("finished", "keywords", "train", "--resume", run.name, "--runs", "runs")


def test_evaluate_what_a_published_split_tests(home, monkeypatch, said, refused):
    """Its words, by speakers whose names are a testing one's."""
    clips = embedded_words(5, 2, 4)
    names = {which_set(name): name for name in (f"user{number}" for number in range(40))}
    called = dict(zip(sorted(set(clips.speakers.tolist())), (names["testing"], names["training"]), strict=True))
    mine = WordSplit(train=WORDS[:1], test=WORDS[1:4], unknown=WORDS[4:5])
    monkeypatch.setitem(episodes.WORD_SPLITS, "chen2020-digits", mine)
    for number, (word, speaker) in enumerate(zip(clips.words.tolist(), clips.speakers.tolist(), strict=True)):
        (home / "clips" / word).mkdir(parents=True, exist_ok=True)
        soundfile.write(home / "clips" / word / f"{called[speaker]}_nohash_{number}.wav", clips.clip(number), 16_000)
    asked = [
        "clips",
        "--split",
        "chen2020-digits",
        "--num-classes",
        "3",
        "--shots",
        "1",
        "--queries",
        "2",
        "--episodes",
        "3",
    ]
    assert "chen2020-digits: 16 of: 40 clips" in said("keywords", "evaluate", *asked, "--speakers", "any")
    refused("'yes'", "keywords", "evaluate", "clips", "--split", "rusci2023")


def test_a_microphone_is_listened_to_until_interrupted(home, monkeypatch, said):
    assert main(["keywords", "enrol", "sola", *record("sola", 2), "--into", "my-words"]) == 0
    (home / "labels.txt").write_text("0.0\t1.0\tsola\n")

    def heard(rate, name):
        for _ in range(30):
            yield np.zeros(rate // 10, np.float32)
        signal.raise_signal(signal.SIGINT)
        yield np.zeros(rate // 10, np.float32)
        raise AssertionError("asked for more than was to be heard")

    monkeypatch.setattr(audio, "microphone_blocks", heard)
    listen = ["listen", "--microphone", "--words", "my-words", "--threshold", "0.99", "--labels", "labels.txt"]
    assert "0 of 1 keyword " in said("keywords", *listen)


def test_claims_without_data_are_not_measured(monkeypatch, capsys, refused):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    assert main(["keywords", "check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 8 and all(line.startswith(Verdict("", "", None).word) for line in lines)
    refused("EDGELEARN_DATA", "keywords", "personal")


def test_learning_from_unlabelled_clips_is_compared_with_none(said):
    command = "keywords evaluate --network sample --learner pseudo-labels --unlabelled 2 --shots 1 --queries 2"
    out = said(*command.split(), "--episodes", "3")
    assert out.index("nearest-mean") < out.index("pseudo-labels")
