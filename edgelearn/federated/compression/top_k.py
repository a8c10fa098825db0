"""Updates of which the largest entries are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from edgelearn.errors import PlanError

from ..compressor import NoCompression, Shapes
from . import indices
from .arrays import check_size, count, flatten, split
from .int8 import Int8

_QUARTER = 0.25  # share of the entries of one stage of a warm-up that the next one sends


@dataclass(frozen=True)
class TopK:
    """The entries of largest absolute value, from all arrays together; the others count as 0 (Aji and Heafield 2017,
    "Sparse communication for distributed gradient descent").

    A message is the places of these entries, packed to the bit, then their values. Of equal entries the first ones are
    sent. Use it in an `ErrorFeedback`, or small entries are never sent.

    Arguments:
    - `fraction`: of all entries, above 0 and up to 1, rounded up to whole ones.
    - `values`: compressor of their values, `NoCompression()` (default: float32) or `Int8()`, with one scale for all.
    - `warm_up`: for so many rounds a quarter of the entries is sent, for as many a sixteenth, and so on down to
      `fraction` (default 0: none; Lin et al. 2018, "Deep gradient compression", section 3.3).

    Raises PlanError for another fraction.
    """

    fraction: float
    values: NoCompression | Int8 = field(default_factory=NoCompression)
    warm_up: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise PlanError(f"top-k sends a fraction above 0 and up to 1 of all entries, not {self.fraction}.")

    def at_round(self, number: int) -> TopK:
        if not self.warm_up:
            return self
        stage = (number - 1) // self.warm_up
        return TopK(max(self.fraction, _QUARTER ** (stage + 1)), self.values)

    def size(self, shapes: Shapes) -> int:
        """Bytes of a message."""
        n, k = self._counts(shapes)
        return indices.size(n, k) + (self.values.size([(k,)]) if isinstance(self.values, Int8) else 4 * k)

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        flat = flatten(arrays)
        places = _largest(np.abs(flat), self._counts([array.shape for array in arrays])[1])
        return indices.pack(places, len(flat)) + self.values.encode([flat[places]], rng, state)

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        n, k = self._counts(shapes)
        check_size(data, self.size(shapes), f"the {k:,} largest of {n:,} values")
        start = indices.size(n, k)
        flat = np.zeros(n, np.float32)
        (flat[indices.unpack(data[:start], n, k)],) = self.values.decode(data[start:], [(k,)])
        return split(flat, shapes)

    def _counts(self, shapes: Shapes) -> tuple[int, int]:
        """(all entries, those that are sent)."""
        n = count(shapes)
        return n, min(n, ceil(self.fraction * n))


def _largest(sizes: np.ndarray, k: int) -> np.ndarray:
    """Places of the `k` largest of `sizes`, ascending; of equal ones the first."""
    if k == 0:
        return np.empty(0, np.int64)
    least = np.partition(sizes, len(sizes) - k)[len(sizes) - k]
    above = np.flatnonzero(sizes > least)
    return np.sort(np.concatenate([above, np.flatnonzero(sizes == least)[: k - len(above)]]))
