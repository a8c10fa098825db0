"""CIFAR-10 (Krizhevsky 2009, "Learning multiple layers of features from tiny images"): 50,000 pictures to train with,
10,000 to test with, 32 x 32 pixels, ten classes."""

import os
from dataclasses import replace
from functools import partial

from .pictures import ImageDataset, standardize
from .tfds import Collection, load

SIZE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10 = Collection(
    name="cifar10",
    version="3.0.2",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    noun="pictures",
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/cifar10, or go online once, so that TensorFlow "
    "Datasets can download it.",
)

# Mean and deviation of each channel over the training pictures, of pixels in 0 to 1.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
standardized = partial(standardize, mean=MEAN, deviation=DEVIATION)


def load_cifar10(split: str = "train", data: str | os.PathLike | None = None, download: bool = True) -> ImageDataset:
    """Load CIFAR-10.

    Arguments:
    - `split`: "train" (default) or "test".
    - `data`: folder with the data (default: EDGELEARN_DATA, else TensorFlow Datasets' own folder).
    - `download`: download missing data to TensorFlow Datasets' own folder (default True).

    Raises DownloadError (a DataError) within about ten seconds without a network, DataError if a named folder doesn't
    have the data, they are damaged, or a package is missing. No other data set is used instead.
    """
    # class_names: data prepared without TFDS's file of names have numbers there
    return replace(load(CIFAR10, data, download, split), class_names=CLASSES)
