"""The digits of scikit-learn: 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak 1998, "Optical recognition
of handwritten digits", UCI repository; the test set of 13 writers)."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from edgelearn.errors import DataError

LARGEST = 16.0  # of a pixel


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits, float32 (1797, 8, 8, 1) from 0 to 1, and their labels, int32 (1797,).

    Raises DataError if scikit-learn, whose package has them, isn't installed.
    """
    if find_spec("sklearn") is None:
        raise DataError("The digits come with scikit-learn: pip install 'edgelearn[digits]'.")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (np.reshape(pixels, (-1, 8, 8, 1)) / LARGEST).astype(np.float32), np.asarray(labels, np.int32)


def standardized_digits(images: np.ndarray, size: int = 28) -> np.ndarray:
    """Digits (n, 8, 8, 1) enlarged to `size` pixels (bilinear), less their mean, over their deviation, as DeepCL and
    TransferCL take them."""
    places = np.clip((np.arange(size) + 0.5) * images.shape[1] / size - 0.5, 0, images.shape[1] - 1)
    low = np.minimum(places.astype(int), images.shape[1] - 2)
    share = (places - low).astype(np.float32)
    rows = images[:, low] * (1 - share)[:, None, None] + images[:, low + 1] * share[:, None, None]
    large = rows[:, :, low] * (1 - share)[:, None] + rows[:, :, low + 1] * share[:, None]
    return ((large - large.mean()) / large.std()).astype(np.float32)
