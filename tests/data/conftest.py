import io
import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgelearn.data import tfds_reader

HAS_TFDS = all(find_spec(name) for name in ("tensorflow", "tensorflow_datasets", "importlib_resources"))


@pytest.fixture
def photo():
    """A smooth colored picture, 96 wide and 64 high, without symmetry."""
    y, x = np.mgrid[0:64, 0:96]
    pixels = np.stack([x * 2.5, y * 3.5, 128 + 60 * np.sin(x / 20 + y / 30)], 2)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def encode():
    """encode(image, kind, **options) -> bytes"""

    def encode(image, kind="PNG", **options):
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data named by the environment, none in the home folder, and no proxy in between."""
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="session")
def real_data():
    root = os.environ.get("EDGELEARN_DATA")
    if not root:
        pytest.skip("EDGELEARN_DATA isn't set: no real photographs to test with")
    if not HAS_TFDS:
        pytest.skip("tensorflow and tensorflow-datasets aren't installed: nothing to read tf_flowers with")
    return root


_PREPARE = """
import json, sys
import tensorflow as tf
folder, pictures = sys.argv[1], [bytes.fromhex(line) for line in sys.stdin.read().split()]
def feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
for shard in range(2):
    with tf.io.TFRecordWriter(f"{folder}/tf_flowers-train.tfrecord-0000{shard}-of-00002") as writer:
        for i in range(shard * 5, shard * 5 + 5):
            example = {"image": feature(pictures[i]), "label": feature(i % 5)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=example)).SerializeToString())
"""
_KINDS = ("dandelion", "daisy", "tulips", "sunflowers", "roses")


@pytest.fixture
def reader_in_fork(python_with_tensorflow, tmp_path, monkeypatch):
    """Data are read by forks of a process that has imported TensorFlow."""
    command = [*python_with_tensorflow, tfds_reader.__file__]
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(f"import os, sys\nos.execv(sys.executable, {command!r} + sys.argv[1:])\n")
    monkeypatch.setattr(tfds_reader, "__file__", str(stand_in))


@pytest.fixture(scope="session")
def small_prepared(tmp_path_factory, request):
    """A data folder with ten pictures prepared as tf_flowers 3.0.1, in two files, and the pictures."""
    if not HAS_TFDS:
        pytest.skip("tensorflow and tensorflow-datasets aren't installed")
    root = tmp_path_factory.mktemp("data")
    folder = root / "tensorflow_datasets" / "tf_flowers" / "3.0.1"
    folder.mkdir(parents=True)
    pictures = []
    for i in range(10):
        buffer = io.BytesIO()
        Image.new("RGB", (20 + i, 30), (i * 20, 100, 50)).save(buffer, "JPEG")
        pictures.append(buffer.getvalue())
    prefix = "tensorflow_datasets.core.features."
    shape = {"dimensions": ["-1", "-1", "3"]}
    features = {
        "image": {"image": {"dtype": "uint8", "shape": shape}, "pythonClassName": prefix + "image_feature.Image"},
        "label": {"classLabel": {"numClasses": "5"}, "pythonClassName": prefix + "class_label_feature.ClassLabel"},
    }
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "numBytes": "9",
        "shardLengths": ["5", "5"],
    }
    info = {"name": "tf_flowers", "version": "3.0.1", "fileFormat": "tfrecord", "splits": [split]}
    described = {"featuresDict": {"features": features}, "pythonClassName": prefix + "features_dict.FeaturesDict"}
    (folder / "features.json").write_text(json.dumps(described))
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "label.labels.txt").write_text("\n".join(_KINDS) + "\n")
    subprocess.run(
        [*request.getfixturevalue("python_with_tensorflow"), "-c", _PREPARE, str(folder)],
        input="\n".join(picture.hex() for picture in pictures),
        text=True,
        check=True,
        capture_output=True,
    )
    return root, pictures


_FAKE_TFDS = """
import sys, time
from types import SimpleNamespace as Space
from pathlib import Path

decode = Space(SkipDecoding=object)
ReadConfig = lambda **options: None
as_numpy = iter

class Builder:
    def __init__(self, name, data_dir=None):
        self.name, self.root = name, Path(data_dir)
        label, train = Space(names=["a", "b"]), Space(num_examples=3, filepaths=[])
        self.info = Space(features={"label": label}, splits={"train": train})
    def download_and_prepare(self):
        print("progress bars and notices")
        if "failing" in self.root.name:
            raise RuntimeError("the archive has a wrong checksum")
        if "endless" in self.root.name:
            time.sleep(60)
        folder = self.root / self.name.replace(":", "/")
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text("{}")
    def as_dataset(self, **options):
        count = 2 if "short" in self.root.name else 3
        return [{"image": b"picture %d" % i, "label": i % 2} for i in range(count)]

builder = Builder
"""


@pytest.fixture
def fake_tfds(tmp_path, monkeypatch):
    """A stand-in for TensorFlow Datasets, to be downloaded with: the real one would need a network."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("tensorflow", "importlib_resources"):
        (folder / f"{name}.py").write_text("")
    Path(folder / "tensorflow_datasets.py").write_text(_FAKE_TFDS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
