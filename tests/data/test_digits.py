"""MNIST through TensorFlow Datasets: decoding, and a clear end where it can't be had."""

import io

import numpy as np
import pytest
from PIL import Image

from edgelearn.data import digits
from edgelearn.data.tfds import Found
from edgelearn.errors import DataError
from edgelearn.experiments import depth


def test_mnist_is_decoded(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    pictures = []
    for each in pixels:
        Image.fromarray(each).save(picture := io.BytesIO(), "PNG")
        pictures.append(picture.getvalue())
    found = Found(pictures, np.array([7, 0, 3], np.int32), (), "tfds", "")
    monkeypatch.setattr(digits, "fetch", lambda collection, data, download, split: found)
    images, labels = digits.load_mnist("test")
    np.testing.assert_allclose(images[..., 0], pixels / 255, atol=1e-7)
    assert labels.tolist() == [7, 0, 3]


def test_where_mnist_is_missing_the_message_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"No prepared mnist/3.0.1 found.*scikit-learn need no network"):
        digits.load_mnist(data=tmp_path, download=False)


def test_transfercl_s_job_with_mnist(monkeypatch):
    labels = (np.arange(256) % 10).astype(np.int32)
    images = np.random.default_rng(1).uniform(0, 0.3, (256, 28, 28, 1)).astype(np.float32)
    images[np.arange(256), 2 * labels + 4] = 1.0
    monkeypatch.setattr(
        depth, "load_mnist", lambda split, *_: (images, labels) if split == "train" else (images[:50], labels[:50])
    )
    start = depth.TASKS["mnist"](depth.DepthConfig(task="mnist", pretrain_epochs=1))
    assert (len(start.train[1]), len(start.test[1]), start.network.name) == (128, 50, "lenet_deepcl_152_28")
    assert start.description.startswith(
        "MNIST: 128 to pretrain, 128 to train, 50 to test. The pretrained network names "
    )
    assert start.weights.keys() == start.network.parameters.keys()
