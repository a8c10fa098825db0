"""Handwritten digits. scikit-learn has 1,797 of 8 x 8 pixels (Alpaydin and Kaynak 1998, "Optical recognition of
handwritten digits", UCI repository; the test set of 13 writers); TensorFlow Datasets has MNIST (LeCun et al. 1998),
70,000 of 28 x 28."""

from __future__ import annotations

import io
import os
from importlib.util import find_spec

import numpy as np
from PIL import Image

from edgelearn.errors import DataError

from .tfds import Collection, fetch

LARGEST = 16.0  # of a pixel of scikit-learn's
MNIST = Collection(
    name="mnist",
    version="3.0.1",
    url="https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz",
    noun="digits",
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/mnist, or go online once, so that TensorFlow "
    "Datasets can download it. The digits of scikit-learn need no network.",
)


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits, float32 (1797, 8, 8, 1) from 0 to 1, and their labels, int32 (1797,).

    Raises DataError if scikit-learn, whose package has them, isn't installed.
    """
    if find_spec("sklearn") is None:
        raise DataError("The digits come with scikit-learn: pip install 'edgelearn[digits]'.")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (np.reshape(pixels, (-1, 8, 8, 1)) / LARGEST).astype(np.float32), np.asarray(labels, np.int32)


def load_mnist(
    split: str = "train", data: str | os.PathLike | None = None, download: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's digits, float32 (n, 28, 28, 1) from 0 to 1, and their labels, int32 (n,).

    Arguments:
    - `split`: "train" (default), 60,000, or "test", 10,000.
    - `data`: folder with the data (default: EDGELEARN_DATA, else TensorFlow Datasets' own folder).
    - `download`: download missing data to TensorFlow Datasets' own folder (default True).

    Raises DownloadError (a DataError) within about ten seconds without a network, DataError if a named folder doesn't
    have the data, they are damaged, or a package is missing.
    """
    found = fetch(MNIST, data, download, split)
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(png)).convert("L")) for png in found.values])
    return (pixels[..., None] / 255.0).astype(np.float32), found.labels


def standardized_digits(images: np.ndarray, size: int = 28) -> np.ndarray:
    """Square digits, such as (n, 8, 8, 1), scaled to `size` pixels (bilinear), less their mean, over their deviation,
    as DeepCL and TransferCL take them."""
    places = np.clip((np.arange(size) + 0.5) * images.shape[1] / size - 0.5, 0, images.shape[1] - 1)
    low = np.minimum(places.astype(int), images.shape[1] - 2)
    share = (places - low).astype(np.float32)
    rows = images[:, low] * (1 - share)[:, None, None] + images[:, low + 1] * share[:, None, None]
    large = rows[:, :, low] * (1 - share)[:, None] + rows[:, :, low + 1] * share[:, None]
    return ((large - large.mean()) / large.std()).astype(np.float32)
