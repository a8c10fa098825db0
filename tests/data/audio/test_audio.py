"""Recordings: decoded, cut, read from folders, streamed from files and the microphone; Speech Commands."""

import os
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from edgelearn.data import audio, speech_commands
from edgelearn.data.audio import (
    ClipDataset,
    decode,
    file_blocks,
    fit,
    load_clips,
    load_folder,
    load_noises,
    microphone_blocks,
    resample,
    speaker_of,
)
from edgelearn.data.speech_commands import CLASSES, SPEECH_COMMANDS, load_named, load_speech_commands
from edgelearn.errors import DataError, DownloadError, ShapeError

KINDS = [("WAV", None), ("WAV", "FLOAT"), ("WAVEX", None), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS")]


@pytest.mark.parametrize("kind, subtype", KINDS)
def test_formats(encode, tone, kind, subtype):
    samples = decode(encode(tone(), 16000, kind, subtype), "x")
    assert samples.dtype == np.float32 and samples.shape == (16000,)
    exact = kind != "OGG"
    inner = slice(None) if exact else slice(2000, 14000)
    np.testing.assert_allclose(samples[inner], tone()[inner], atol=1e-4 if exact else 0.03)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_rates(encode, tone, rate):
    samples = decode(encode(tone(440, 1, rate), rate), "x")
    assert abs(len(samples) - 16000) <= 1
    np.testing.assert_allclose(samples[800:15000], tone()[800:15000], atol=2e-3)


def test_what_a_lower_rate_cannot_hold_is_gone_and_not_mirrored(tone):
    high = resample(tone(11000, 1, 48000), 48000, 16000)  # would sound as 5 kHz
    assert np.abs(high[1000:-1000]).max() < 1e-4


def test_channels_are_averaged(encode, tone):
    both = np.stack([tone(440), tone(880), np.zeros(16000, np.float32)], 1)
    np.testing.assert_allclose(decode(encode(both), "x"), both.mean(1), atol=1e-4)


@pytest.mark.parametrize("kind, subtype", KINDS)
@pytest.mark.parametrize("part", [0.9, 0.5, 0.02, 0.0])
def test_truncated_files_are_refused(encode, tone, kind, subtype, part):
    whole = encode(tone(), 16000, kind, subtype)
    with pytest.raises(DataError, match=r"^clip\.x "):
        decode(whole[: int(len(whole) * part)], "clip.x")


def test_a_wav_of_unknown_length_is_read(encode, tone):
    """A program that writes to a pipe can't go back to say how long it was."""
    piped = bytearray(encode(tone()))
    at = piped.index(b"data") + 4
    piped[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert decode(bytes(piped), "x").shape == (16000,)


def test_other_files_are_refused(encode, tone, tmp_path, monkeypatch):
    broken, raw = tone().copy(), tmp_path / "notes.raw"
    broken[7] = np.nan
    raw.write_bytes(b"x" * 100)
    for source, match in (
        (b"hello" * 100, "^x "),
        (encode(tone(), kind="AIFF"), "^x "),
        (encode(np.zeros(0, np.float32)), "^x "),
        (encode(broken, subtype="FLOAT"), "NaN"),
        (raw, "^x "),
        (tmp_path / "gone.wav", "^There is no recording x"),
        *((encode(tone(), rate), f"{rate:,} .*4,000 to 768,000") for rate in (1, 3999, 2_000_000)),
    ):
        with pytest.raises(DataError, match=match):
            decode(source, "x")
    monkeypatch.setattr(audio, "MAX_SAMPLES", 15999)
    with pytest.raises(DataError, match=r"^x .*exhaust"):
        decode(encode(np.zeros(16000, np.float32), kind="FLAC"), "x")


def test_damage_is_refused_or_read_but_never_crashes(encode, tone):
    rng = np.random.default_rng(0)
    for kind, subtype in KINDS:
        whole = encode(tone(), 16000, kind, subtype)
        for _ in range(30):
            damaged = bytearray(whole)
            for at in rng.integers(0, min(len(whole), 2000), 3):
                damaged[at] = rng.integers(256)
            with suppress(DataError):
                assert np.isfinite(decode(bytes(damaged), "x")).all()


def test_shorter_recordings_are_padded_and_of_longer_ones_the_loudest_stretch_is_kept(tone):
    short = tone()[:5000]
    np.testing.assert_array_equal(fit(short, 8000), np.r_[short, np.zeros(3000)])
    long = np.zeros(50000, np.float32)
    long[21000:29000] = tone()[:8000]
    assert np.square(fit(long, 16000)).sum() == np.square(long).sum()
    np.testing.assert_array_equal(fit(long[:16000], 16000), long[:16000])


def test_a_missing_library_is_named(encode, tone):
    code = (
        "import sys; sys.modules['soundfile'] = None\n"
        "from edgelearn.data.audio import decode\n"
        "try: decode(b'', 'x')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'edgelearn[audio]'" in done.stdout


@pytest.fixture
def dataset(encode, tone):
    """A clip of each kind: encoded at another rate, samples as integers and floats, a function."""
    items = [
        encode(tone(rate=8000), 8000, "FLAC"),
        np.round(tone() * 32768).astype(np.int16),
        tone(),
        lambda rate: tone(440, 1, rate),
    ]
    return ClipDataset("four", "folder", "Four.", ("a", "b"), [0, 1, 0, 1], ["x", "x", "y", ""], items)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_all_kinds_sound_the_same(dataset, tone, rate):
    clips = load_clips(dataset, rate=rate)
    assert clips.dtype == np.float32
    for clip in clips:
        np.testing.assert_allclose(clip[500:-500], tone(440, 1, rate)[500:-500], atol=2e-3)


def test_order_length_and_out(dataset):
    out = np.empty((3, 8000), np.float32)
    assert load_clips(dataset, np.array([2, 0, 2]), seconds=0.5, out=out) is out
    np.testing.assert_array_equal(out[0], out[2])
    np.testing.assert_array_equal(out[0], dataset.clip(2, seconds=0.5))
    assert load_clips(dataset, [], seconds=2).shape == (0, 32000)
    with pytest.raises(ShapeError, match=r"\(1, 16000\).*\(3, 8000\)"):
        load_clips(dataset, [1], out=out)


def test_parts(dataset):
    part = dataset.take(dataset.speakers == "x")
    assert len(part) == 2 and part.words.tolist() == ["a", "b"] and part.class_names == ("a", "b")
    assert len(dataset.take([])) == 0 and dataset.take([-1]).speakers.tolist() == [""]
    only = dataset.only(["b"])
    assert only.labels.tolist() == [0, 0] and only.class_names == ("b",) and only.speakers.tolist() == ["x", ""]
    assert dataset.only(["b", "a"]).words.tolist() == dataset.words.tolist()
    with pytest.raises(DataError, match=r"'c'.* a, b"):
        dataset.only(["c"])


def test_what_does_not_fit_is_refused(tmp_path):
    make = partial(ClipDataset, "n", "folder", "N.", ("a",))
    for labels, speakers, message in (([0, 0], [""], "labels"), ([0], [], "speakers"), ([1], [""], "1 to 1")):
        with pytest.raises(DataError, match=message):
            make(labels, speakers, [b""])
    with pytest.raises(DataError, match=r"gone\.wav"):
        load_clips(make([0], [""], [tmp_path / "gone.wav"]))


def test_words_are_the_sorted_subfolders(folder):
    (folder / "_background_noise_").mkdir()
    (folder / "LICENSE").write_text("")
    (folder / "yes" / ".hidden.wav").write_text("")
    dataset = load_folder(folder, speaker="me")
    assert dataset.class_names == ("no", "yes") and dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.speakers.tolist() == ["0c540988", "ann_b", "me"] * 2
    assert load_folder(folder).speakers.tolist()[2] == ""
    assert dataset.origin == "folder" and str(folder) in dataset.description and dataset.skipped == []
    assert all(dataset.clip(i).shape == (16000,) for i in range(6))


def test_who_speaks():
    assert speaker_of("0c540988_nohash_12.wav", "yes") == "0c540988"
    assert speaker_of("visual_ea37ca08_nohash_0.wav", "_unknown_") == "ea37ca08"
    assert speaker_of("1037.wav", "_silence_") == ""


def test_unusable_files_are_named_skipped_and_counted(folder):
    whole = (folder / "no" / "ann_b_nohash_0.wav").read_bytes()
    (folder / "no" / "cut.wav").write_bytes(whole[:20000])
    (folder / "no" / "empty.wav").write_bytes(b"")
    (folder / "yes" / "notes.txt").write_text("about")
    (folder / "yes" / "link.wav").symlink_to(folder / "nothing.wav")
    dataset = load_folder(folder)
    assert len(dataset) == 6
    assert [os.path.basename(path) for path, _ in dataset.skipped] == ["cut.wav", "empty.wav", "link.wav", "notes.txt"]
    assert all(path in reason for path, reason in dataset.skipped)
    assert "truncated" in dataset.skipped[0][1] and "4 files skipped" in dataset.description


def test_folders_that_cannot_be_used(tmp_path, folder):
    with pytest.raises(DataError, match="gone"):
        load_folder(tmp_path / "gone")
    (folder / "maybe").mkdir()
    (folder / "maybe" / "a.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"'maybe'.*1 file .*a\.wav"):
        load_folder(folder)
    noise = tmp_path / "noise"
    (noise / "_background_noise_").mkdir(parents=True)
    with pytest.raises(DataError, match="_background_noise_"):
        load_folder(noise)
    with pytest.raises(DataError, match="_background_noise_"):
        load_noises(noise)


def test_noises(tmp_path, encode, tone):
    noise = tmp_path / "_background_noise_"
    noise.mkdir()
    (noise / "README.md").write_text("about")
    (noise / "hum.wav").write_bytes(encode(tone(50, 3, 44100), 44100))
    for path in (tmp_path, noise):
        (samples,) = load_noises(path)
        assert abs(len(samples) - 48000) <= 1 and samples.dtype == np.float32
    (noise / "bad.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.wav"):
        load_noises(noise)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_blocks_of_a_file_are_the_file(tmp_path, tone, rate):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.stack([tone(440, 3.07, rate), tone(880, 3.07, rate)], 1), rate)
    blocks = list(file_blocks(path))
    assert max(map(len, blocks)) < 8_000
    np.testing.assert_allclose(np.concatenate(blocks), decode(path, "long"), atol=1e-3)


def test_a_file_that_cannot_be_heard_is_named(tmp_path, encode, tone):
    files = {
        "text.wav": b"not sound", "sun.wav": encode(tone(), kind="AU"), "empty.wav": encode(np.empty(0, np.float32)),
        "odd.wav": encode(np.array([0.0, np.nan]), subtype="FLOAT"),
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for match in (r"nothing\.wav", r"text\.wav", r"sun\.wav is AU", r"empty\.wav", r"odd\.wav .*NaN"):
        with pytest.raises(DataError, match=match):
            list(file_blocks(tmp_path / match.split()[0].replace("\\", "")))


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_truncated_file_is_heard_and_named(tmp_path, encode, tone, kind):
    whole = encode(tone(seconds=2.0), kind=kind)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    heard = []
    with pytest.raises(DataError, match=r"cut "):
        heard.extend(file_blocks(tmp_path / "cut"))
    assert 0 < sum(map(len, heard)) < 2 * 16_000


def fake(blocks, problem=None):
    """A sounddevice whose microphone has heard `blocks` as soon as it is opened."""

    def check_input_settings(device, channels, dtype, samplerate):
        if problem:
            raise problem

    class InputStream:
        def __init__(self, rate, size, device, channels, dtype, callback):
            for block in blocks:
                callback(block[:, None], len(block), None, None)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    return SimpleNamespace(
        InputStream=InputStream, PortAudioError=RuntimeError, check_input_settings=check_input_settings
    )


def test_the_microphone(monkeypatch):
    blocks = [np.full(1600, level, np.float32) for level in (0.1, 0.2)]
    monkeypatch.setitem(sys.modules, "sounddevice", fake(blocks))
    heard = microphone_blocks()
    np.testing.assert_array_equal([next(heard), next(heard)], blocks)
    heard.close()


def test_a_microphone_that_is_missing_silent_or_too_fast(monkeypatch):
    block = np.zeros(1600, np.float32)
    monkeypatch.setattr(audio, "_SILENT", 0.01)
    for sounddevice, match in (
        (None, "pip install sounddevice"),
        (fake([], RuntimeError("no input")), "no input"),
        (fake([block]), r"0\.01 seconds"),
        (fake([block] * 101), "10 s behind"),
    ):
        monkeypatch.setitem(sys.modules, "sounddevice", sounddevice)
        with pytest.raises(DataError, match=match):
            list(microphone_blocks())


# As TensorFlow Datasets writes it: six clips of a tenth of a second, the label being in the samples.
_PREPARE = """
import json, sys
import numpy as np, tensorflow as tf, tensorflow_datasets as tfds
folder = sys.argv[1]
names = ["down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes", "_silence_", "_unknown_"]
label = tfds.features.ClassLabel(names=names)
audio = tfds.features.Audio(file_format="wav", shape=(None,), sample_rate=16000, dtype=np.int16)
features = tfds.features.FeaturesDict({"audio": audio, "label": label})
features.save_config(folder)
with tf.io.TFRecordWriter(f"{folder}/speech_commands-test.tfrecord-00000-of-00001") as writer:
    for number in (0, 11, 10, 9, 11, 3):
        example = {"audio": np.full(1600, number * 1000 - 5000, np.int16), "label": number}
        writer.write(features.serialize_example(features.encode_example(example)))
split = {"name": "test", "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "9",
         "shardLengths": ["6"]}
info = {"name": "speech_commands", "version": "0.0.3", "fileFormat": "tfrecord", "splits": [split]}
open(f"{folder}/dataset_info.json", "w").write(json.dumps(info))
"""


@pytest.mark.skipif(find_spec("tensorflow_datasets") is None, reason="tensorflow-datasets isn't installed")
def test_prepared_clips(python_with_tensorflow, reader_in_fork, tmp_path, monkeypatch):
    folder = tmp_path / "tensorflow_datasets" / "speech_commands" / "0.0.3"
    folder.mkdir(parents=True)
    done = subprocess.run([*python_with_tensorflow, "-c", _PREPARE, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path))
    dataset = load_speech_commands("test")
    assert dataset.class_names == CLASSES and dataset.origin == "EDGELEARN_DATA"
    assert dataset.words.tolist() == ["down", "_unknown_", "_silence_", "yes", "_unknown_", "no"]
    assert set(dataset.speakers.tolist()) == {""} and "6 clips" in dataset.description
    clips = load_clips(dataset, seconds=0.1)
    np.testing.assert_array_equal(clips[:, 7] * 32768, [-5000, 6000, 5000, 4000, 6000, -2000])


def test_no_network_is_noticed_at_once(nowhere, monkeypatch):
    away = replace(SPEECH_COMMANDS, url="http://127.0.0.1:9/speech_commands.tar.gz")
    monkeypatch.setattr(speech_commands, "SPEECH_COMMANDS", away)
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9.*EDGELEARN_DATA"):
        load_speech_commands()
    with pytest.raises(DataError, match=r"speech_commands/0\.0\.3"):
        load_speech_commands(download=False)


def test_named_folders(nowhere, folder, monkeypatch):
    assert load_named("words", folder.parent).origin == "EDGELEARN_DATA"
    with pytest.raises(DataError, match=r"words .*EDGELEARN_DATA"):
        load_named("words")
    monkeypatch.setenv("EDGELEARN_DATA", str(folder.parent))
    assert len(load_named("words")) == 6
    with pytest.raises(DataError, match="other"):
        load_named("other")


def real(name):
    root = os.environ.get("EDGELEARN_DATA")
    if not root or not Path(root, name).is_dir():
        pytest.skip(f"EDGELEARN_DATA isn't set, or has no {name}: no real recordings to test with")
    return load_named(name)


def test_the_real_arabic_clips(monkeypatch):
    """Opus in Ogg: 24 keywords by 24 speakers, 10 takes of each (Ghandoura 2021). One in eight is decoded."""
    numbers, read_labelled = count(), audio.read_labelled

    def read_some(folder, words, read, *texts):
        return read_labelled(folder, words, lambda *file: None if next(numbers) % 8 else read(*file), *texts)

    monkeypatch.setattr(audio, "read_labelled", read_some)
    dataset = real("arabic_speech_commands")
    assert dataset.skipped == [] and len(dataset.class_names) == 24 and len(np.unique(dataset.speakers)) == 24
    _, counts = np.unique(np.stack([dataset.labels, np.unique(dataset.speakers, return_inverse=True)[1]]), axis=1,
                          return_counts=True)  # fmt: skip
    assert counts.tolist() == [10] * 576
    clips = load_clips(dataset, np.arange(0, len(dataset), 40))
    assert clips.shape[1] == 16000 and np.sqrt((clips**2).mean(1)).min() > 1e-3


def test_the_real_test_set():
    dataset = real("speech_commands_v0.02_test")
    assert dataset.skipped == [] and dataset.class_names == CLASSES and len(dataset) == 3746
    assert len(np.unique(dataset.speakers[dataset.labels > 0])) == 180
    assert set(dataset.speakers[dataset.labels == 0]) == {""}
