"""Updates as signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import FormatError

from ..compressor import Shapes
from .arrays import check_size, count, flatten, split


@dataclass(frozen=True)
class Signs:
    """A bit for each entry, and the mean absolute value of each array, which all its entries get (Seide et al. 2014;
    with `TopK`, Sattler et al. 2019, "Robust and communication-efficient federated learning from non-IID data").

    A message is the means, float32, then the bits of all arrays. Its errors aren't 0 on average: use it in an
    `ErrorFeedback`.
    """

    def size(self, shapes: Shapes) -> int:
        """Bytes of a message."""
        return 4 * len(shapes) + -(-count(shapes) // 8)

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        means = [np.abs(array).mean(dtype=np.float64) if array.size else 0.0 for array in arrays]
        return np.array(means, "<f4").tobytes() + np.packbits(flatten(arrays) > 0).tobytes()

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        values = count(shapes)
        check_size(data, self.size(shapes), f"{values:,} signs")
        means = np.frombuffer(data, "<f4", len(shapes))
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=4 * len(shapes)))
        if not (np.isfinite(means) & (means >= 0)).all() or bits[values:].any():
            raise FormatError("A message of signs has a mean below 0 or not finite, or more bits: leave it out.")
        signs = split(2 * bits[:values].astype(np.float32) - 1, shapes)
        return [np.float32(mean) * part for mean, part in zip(means, signs, strict=True)]
