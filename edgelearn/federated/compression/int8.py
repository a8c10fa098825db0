"""Updates in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import FormatError

from ..compressor import Shapes
from .arrays import check_size, count, flatten, split

LARGEST = 127


@dataclass(frozen=True)
class Int8:
    """Integers of 8 bits with a float32 scale for each array, rounded up or down at random so that the mean is exact
    (Alistarh et al. 2017, "QSGD").

    A message is the scales, then the integers. Scale times 127 is the largest absolute value of an array.
    """

    def size(self, shapes: Shapes) -> int:
        """Bytes of a message."""
        return 4 * len(shapes) + count(shapes)

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        shapes = [array.shape for array in arrays]
        flat = flatten(arrays)
        scales = np.array([np.abs(part).max(initial=0) / LARGEST for part in split(flat, shapes)], "<f4")
        scale = np.repeat(scales.astype(np.float64), _sizes(shapes))
        scaled = np.divide(flat, scale, out=np.zeros(len(flat)), where=scale > 0)
        rounded = np.floor(scaled + rng.random(len(flat)))
        return scales.tobytes() + np.clip(rounded, -LARGEST, LARGEST).astype(np.int8).tobytes()

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        check_size(data, self.size(shapes), f"{count(shapes):,} values in int8")
        scales = np.frombuffer(data, "<f4", len(shapes)).astype(np.float32)
        if not (np.isfinite(scales) & (scales >= 0)).all():
            raise FormatError("A message in int8 has a scale that isn't a finite number of at least 0: leave it out.")
        values = np.frombuffer(data, np.int8, offset=4 * len(shapes))
        with np.errstate(over="ignore"):
            flat = values.astype(np.float32) * np.repeat(scales, _sizes(shapes))
        if not np.isfinite(flat).all():
            raise FormatError("A message in int8 has a scale that makes infinities: leave it out.")
        return split(flat, shapes)


def _sizes(shapes: Shapes) -> list[int]:
    return [prod(shape) for shape in shapes]
