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


def checked(array: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Return `array`, which was stored. Raises FormatError unless it is finite float32 of `shape`."""
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise FormatError(
            f"{what} has shape {array.shape} and type {array.dtype}, or isn't finite; expected finite float32 {shape}. "
            "It is damaged, or belongs to another network."
        )
    return array


def check_size(data: bytes, size: int, what: str) -> None:
    """Raises FormatError unless `data` has `size` bytes."""
    if len(data) != size:
        raise FormatError(
            f"A message of {len(data):,} bytes can't be {what}, which takes {size:,}. Sender and receiver must use the "
            "same compression and the same network."
        )
