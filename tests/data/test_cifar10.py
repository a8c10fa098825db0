import socket
from dataclasses import replace

import numpy as np
import pytest

from edgelearn.data import cifar10
from edgelearn.data.cifar10 import CIFAR10, CLASSES, SIZE, load_cifar10, standardized
from edgelearn.data.pictures import load_images
from edgelearn.data.tfds import find_prepared
from edgelearn.errors import DataError, DownloadError


def test_the_real_pictures(real_data):
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


def test_nothing_prepared(nowhere, tmp_path, monkeypatch):
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
