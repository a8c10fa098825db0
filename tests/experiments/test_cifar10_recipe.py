"""The recipe for CIFAR-10 on drawn pictures: it learns, and PyTorch's twin trains alike."""

import io
import json

import numpy as np
import pytest

from edgelearn.cli import main
from edgelearn.data.cifar10 import CLASSES
from edgelearn.experiments import cifar10_recipe as recipe
from edgelearn.models import resnet18_cifar


@pytest.fixture
def pictures(two_colours):
    x, labels = two_colours
    return recipe.Pictures(x, labels, x[:10], labels[:10])


def test_the_network_is_small_enough():
    network = recipe.network()
    assert network.count() <= 500_000 and network.output.shape == (len(CLASSES),)
    rate = recipe.optimizer(20_000, recipe.EPOCHS).learning_rate
    assert rate(0) == 0 and rate(2 * 157) == recipe.RATE and rate(157 * recipe.EPOCHS - 1) < 1e-4


def test_it_trains_and_pytorch_trains_alike(pictures):
    ours = recipe.train(pictures, 0, 3)
    assert ours["loss"][-1] < ours["loss"][0] and 0 <= ours["accuracy"] <= 1
    pytest.importorskip("torch")
    theirs = recipe.train_torch(pictures, 0, 3, "cpu")
    np.testing.assert_allclose(theirs["loss"], ours["loss"], rtol=2e-3)
    assert theirs["parameters"] == ours["parameters"]


def test_another_network_is_saved_and_found_again(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(recipe.NETWORKS, "resnet18_cifar", lambda: resnet18_cifar(alpha=0.125))
    monkeypatch.setattr(recipe, "read", lambda path: pictures)
    models = ["--models", str(tmp_path / "new" / "folder")]
    assert main(["cifar10", "--network", "resnet18_cifar", "--epochs", "1", *models, "--json"]) == 0
    (trained,) = json.loads(capsys.readouterr().out)
    arguments = ["--methods", "statistics", "--kinds", "noise", "--orders", "shuffled", "--batch-size", "4"]
    assert main(["adapt", "cifar10", *arguments, "--micro-batch", "2", *models, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert trained["parameters"] == resnet18_cifar(alpha=0.125).count() > 50_000
    assert "0.2 million parameters" in found["description"]


def test_pictures_in_one_file(pictures, tmp_path, monkeypatch, capsys):
    from PIL import Image

    from edgelearn.data.pictures import ImageDataset

    def encoded(side, download):
        side = pictures.train[:5] if side == "train" else pictures.test[:3]
        items = []
        for picture in side:
            Image.fromarray(picture).save(buffer := io.BytesIO(), "png")
            items.append(buffer.getvalue())
        return ImageDataset("cifar10", "drawn", "Drawn.", CLASSES, np.arange(len(side)), items)

    monkeypatch.setattr(recipe, "load_cifar10", encoded)
    assert main(["cifar10", "--write", str(tmp_path / "cifar10.npz")]) == 0
    found = recipe.read(str(tmp_path / "cifar10.npz"))
    assert np.array_equal(found.train, pictures.train[:5]) and found.test_labels.tolist() == [0, 1, 2]
    assert np.array_equal(recipe.read(None).train, found.train)
    capsys.readouterr()
    assert main(["cifar10", "--data", str(tmp_path / "cifar10.npz"), "--epochs", "1", "--json"]) == 0
    (trained,) = json.loads(capsys.readouterr().out)
    assert trained["seed"] == 0 and len(trained["loss"]) == 1 and trained["parameters"] < 500_000
    parts = recipe.for_validation(pictures)
    assert len(parts.train) == 18 and len(parts.test) == 6
