"""Weights that others publish: found, told from other files, and put onto their networks."""

import hashlib

import numpy as np
import pytest

import edgelearn as el
from edgelearn import models
from edgelearn.errors import DataError, UsageError
from edgelearn.train import loading
from edgelearn.train.loading import PUBLISHED, PublishedWeights


@pytest.mark.parametrize("name", PUBLISHED)
def test_entries_are_of_networks_and_state_checksums(name):
    entry = PUBLISHED[name]
    assert models.named_network(entry.network, **entry.settings).parameters
    algorithm, _, digits = (entry.checksum or "sha256:" + 8 * "0").partition(":")
    assert int(digits, 16) >= 0
    assert len(digits) in {"sha256": (8, 10, 64), "md5": (32,)}[algorithm]
    if entry.url.startswith(loading.TORCHVISION):
        assert entry.file_name.removesuffix(".pth").endswith(digits)


@pytest.fixture
def lenet(tmp_path, monkeypatch):
    """A published LeNet: its file and its weights."""
    network = models.lenet5()
    weights, path = network.initialize(3), tmp_path / "weights" / "lenet.npz"
    path.parent.mkdir()
    np.savez(path, **weights)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    monkeypatch.setitem(
        PUBLISHED, "lenet5", PublishedWeights("lenet5", "https://example.org/lenet.npz", "sha256:" + digits)
    )
    return path, weights


def test_weights_are_loaded_from_a_path_and_from_the_data_folder(lenet, tmp_path, monkeypatch):
    path, weights = lenet
    for model in (el.load_published("lenet5", path), el.load_published("lenet5", path, classes=3)):
        np.testing.assert_array_equal(model.weights["c3/kernel"], weights["c3/kernel"])
    assert model.weights["output/kernel"].shape == (84, 3)
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path))
    np.testing.assert_array_equal(el.load_published("lenet5").weights["output/kernel"], weights["output/kernel"])


def test_another_file_and_a_missing_one_are_refused_with_the_address(lenet, tmp_path, monkeypatch):
    path, _ = lenet
    with path.open("ab") as file:
        file.write(b"0")
    with pytest.raises(DataError, match=r"is not the published file.*https://example.org/lenet.npz"):
        el.load_published("lenet5", path)
    for name in ("EDGELEARN_DATA", "TORCH_HOME", "KERAS_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"are not there. Get https://example.org/lenet.npz"):
        el.load_published("lenet5")
    with pytest.raises(UsageError, match="published weights"):
        el.load_published("lenet6")
