import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from edgelearn.data import cifar10, tfds
from edgelearn.data.cifar10 import CIFAR10, CLASSES, SIZE, load_cifar10, standardized
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import TF_FLOWERS
from edgelearn.data.pictures import load_images
from edgelearn.data.tfds import fetch_from, find_prepared, load, read_downloaded, read_prepared
from edgelearn.errors import DataError, DownloadError


def test_the_real_photographs(real_data, reader_in_fork):
    before = "tensorflow" in sys.modules  # of another test
    dataset = load(TF_FLOWERS, real_data)
    assert dataset.class_names == ("dandelion", "daisy", "tulips", "sunflowers", "roses")
    assert np.bincount(dataset.labels).tolist() == [898, 633, 799, 699, 641]
    train, test = stratified_split(dataset.labels)
    assert (len(train), len(test)) == (2934, 736)
    assert sum(map(len, dataset.items)) < 100e6
    assert dataset.image(0, 224).shape == dataset.image(3669, 224).shape == (224, 224, 3)
    assert ("tensorflow" in sys.modules) == before


def test_pictures_come_as_they_are_stored_and_in_order(small_prepared):
    root, pictures = small_prepared
    dataset = fetch_from(root, TF_FLOWERS)
    assert dataset.values == pictures
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert dataset.class_names == ("dandelion", "daisy", "tulips", "sunflowers", "roses")
    assert dataset.origin == "tfds" and "10 photographs" in dataset.description


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_file_is_named(small_prepared, reader_in_fork, tmp_path, damage):
    shutil.copytree(small_prepared[0], tmp_path / "copy")
    folder = find_prepared("tf_flowers", "3.0.1", tmp_path / "copy")
    file = folder / "tf_flowers-train.tfrecord-00001-of-00002"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data if damage == "changed" else data[: len(data) // 2 - 20])
    with pytest.raises(DataError, match=file.name):
        fetch_from(tmp_path / "copy", TF_FLOWERS)


def test_a_damaged_description_is_an_error(small_prepared, tmp_path):
    shutil.copytree(small_prepared[0], tmp_path / "copy")
    folder = find_prepared("tf_flowers", "3.0.1", tmp_path / "copy")
    (folder / "features.json").write_text("{")
    with pytest.raises(DataError, match=str(folder)):
        fetch_from(tmp_path / "copy", TF_FLOWERS)


def test_the_data_folder_may_be_tfds_own(tmp_path):
    folder = tmp_path / "tf_flowers" / "3.0.1"
    folder.mkdir(parents=True)
    assert find_prepared("tf_flowers", "3.0.1", tmp_path) is None
    (folder / "dataset_info.json").write_text("{}")
    assert find_prepared("tf_flowers", "3.0.1", tmp_path) == folder


def test_nothing_prepared(nowhere, tmp_path):
    with pytest.raises(DataError, match=r"tf_flowers/3\.0\.1 .*EDGELEARN_DATA.*--images"):
        fetch_from(tmp_path, TF_FLOWERS)
    with pytest.raises(DataError, match=r"no_tfds"):
        fetch_from(None, TF_FLOWERS)


def test_a_signal_that_ends_the_reader_is_named(tmp_path, monkeypatch):
    """A damaged file can make TensorFlow segfault, behind a log of other things."""
    reader = tmp_path / "reader.py"
    reader.write_text("import os, signal, sys\nprint('I0000 a note', file=sys.stderr, flush=True)\n"
                      "os.kill(os.getpid(), signal.SIGSEGV)\n")  # fmt: skip
    monkeypatch.setattr(tfds.tfds_reader, "__file__", str(reader))
    monkeypatch.setattr(tfds, "find_spec", lambda name: find_spec("json"))
    with pytest.raises(DataError, match=rf"{tmp_path}.*SIGSEGV.* again"):
        read_prepared(tmp_path)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "find_spec", lambda name: None if name == "tensorflow_datasets" else find_spec("json"))
    with pytest.raises(DataError, match=r"tensorflow_datasets.*pip install 'edgelearn\[tensorflow\]'"):
        read_prepared(tmp_path)


def test_a_server_that_is_not_there_is_noticed_at_once(nowhere):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadError, match=rf":{port}/ .*Do that\."):
        tfds.check_connection(f"http://127.0.0.1:{port}/", "Do that.")


def test_a_server_that_never_answers_is_given_up(nowhere):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.perf_counter()
        with pytest.raises(DownloadError, match=r"0\.3 seconds|timed out"):
            tfds.check_connection(f"http://127.0.0.1:{silent.getsockname()[1]}/", "", limit_s=0.3)
        assert time.perf_counter() - began < 2
    assert tfds.CONNECT_LIMIT_S <= 10


def test_looking_up_a_name_is_given_up_too(nowhere, monkeypatch):
    def slow_resolver(*_, **__):
        time.sleep(2)
        raise OSError("no such name")

    monkeypatch.setattr(tfds, "urlopen", slow_resolver)
    began = time.perf_counter()
    with pytest.raises(DownloadError, match=r"0\.2 seconds"):
        tfds.check_connection("http://flowers.invalid/", "", limit_s=0.2)
    assert time.perf_counter() - began < 1


def test_a_download(fake_tfds, monkeypatch, tmp_path):
    monkeypatch.setattr(tfds, "check_connection", lambda *_: None)
    dataset = fetch_from(tmp_path / "fresh", TF_FLOWERS, download=True)
    assert dataset.values == [b"picture 0", b"picture 1", b"picture 2"]
    assert dataset.labels.tolist() == [0, 1, 0] and dataset.class_names == ("a", "b")
    assert str(tmp_path / "fresh" / "tf_flowers" / "3.0.1") in dataset.description


@pytest.mark.parametrize(
    ("folder", "match"),
    [("failing", r"any:1\.0\.0 .*wrong checksum"), ("endless", "1 seconds"), ("short", " 3 examples.* 2 were")],
)
def test_downloads_that_fail(fake_tfds, tmp_path, monkeypatch, folder, match):
    monkeypatch.setattr(tfds, "DOWNLOAD_LIMIT_S", 1 if folder == "endless" else 60)
    with pytest.raises(DataError, match=match):
        read_downloaded("any:1.0.0", tmp_path / folder)


def test_tensorflow_and_the_engine_stay_out_of_this_process():
    code = (
        "import sys, edgelearn; before = set(sys.modules); import edgelearn.data;"
        "assert set(sys.modules) - before <= {'edgelearn.data'};"
        "import edgelearn.data.flowers, edgelearn.data.pictures;"
        "import edgelearn.data.speech_commands, edgelearn.data.features, edgelearn.data.synthetic_words;"
        "heavy = ('tensorflow', 'pyopencl', 'soundfile', 'soxr');"
        "assert not [name for name in set(sys.modules) - before if name.startswith(heavy)];"
        "rooms = {name.split('.')[1] for name in set(sys.modules) - before if name.startswith('edgelearn.')};"
        "assert rooms <= {'data', 'errors', 'child'}, rooms"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_real_pictures(real_data, reader_in_fork):
    if find_prepared(CIFAR10.name, CIFAR10.version, real_data) is None:
        pytest.skip("no prepared cifar10 in EDGELEARN_DATA")
    dataset = load_cifar10("test")
    assert dataset.class_names == CLASSES and dataset.origin == "EDGELEARN_DATA"
    counts = np.bincount(dataset.labels)
    assert len(counts) == 10 and len(set(counts)) == 1
    images = load_images(dataset, np.arange(1000), SIZE)
    assert images.shape == (1000, 32, 32, 3)
    values = standardized(images).reshape(-1, 3)
    np.testing.assert_allclose(values.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(values.std(0), 1, atol=0.1)


def test_cifar10_is_not_prepared(nowhere, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"cifar10/3\.0\.2 .*no_tfds.*EDGELEARN_DATA"):
        load_cifar10(download=False)
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"cifar10/3\.0\.2 .*{tmp_path}"):
        load_cifar10()


def test_without_a_network_there_is_nothing_else(nowhere, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/cifar.tar.gz"
    monkeypatch.setattr(cifar10, "CIFAR10", replace(CIFAR10, url=url))
    with pytest.raises(DownloadError, match=rf"{url} .*EDGELEARN_DATA"):
        load_cifar10()
