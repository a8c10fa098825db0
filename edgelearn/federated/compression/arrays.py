"""Lists of arrays as one, and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from edgelearn.errors import FormatError, NonFiniteError

from ..compressor import Shapes


def flatten(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return all values, float32 (n,). Raises NonFiniteError naming the array that has a NaN or infinity."""
    for number, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise NonFiniteError(
                f"Array {number} of {len(arrays)} has a NaN or infinity, which can't be compressed. Lower the learning "
                "rate, or send it as float32."
            )
    return np.concatenate([np.ravel(array) for array in arrays] or [np.empty(0)], dtype=np.float32, casting="same_kind")


def split(flat: np.ndarray, shapes: Shapes) -> list[np.ndarray]:
    """The inverse of `flatten`."""
    ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def count(shapes: Shapes) -> int:
    """Number of all values."""
    return sum(prod(shape) for shape in shapes)


def check_size(data: bytes, size: int, what: str) -> None:
    """Raises FormatError unless `data` has `size` bytes."""
    if len(data) != size:
        raise FormatError(
            f"A message of {len(data):,} bytes can't be {what}, which takes {size:,}. Sender and receiver must use the "
            "same compression and the same network."
        )
