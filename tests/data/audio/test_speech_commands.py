import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgelearn.data import speech_commands
from edgelearn.data.audio import load_clips
from edgelearn.data.speech_commands import CLASSES, SPEECH_COMMANDS, load_named, load_speech_commands
from edgelearn.errors import DataError, DownloadError

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
def test_prepared_clips(tmp_path, monkeypatch):
    folder = tmp_path / "tensorflow_datasets" / "speech_commands" / "0.0.3"
    folder.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", _PREPARE, str(folder)], capture_output=True, text=True)
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


def test_the_real_arabic_clips():
    """Opus in Ogg: 24 keywords by 24 speakers, 10 takes of each (Ghandoura 2021)."""
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
