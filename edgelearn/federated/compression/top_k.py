"""Updates of which the largest entries are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import numpy as np

from edgelearn.errors import FormatError, PlanError

from ..compressor import NoCompression, Shapes
from . import indices
from .arrays import count, flatten, split
from .int8 import Int8
from .signs import Signs

_QUARTER = 0.25  # share of the entries of one stage of a warm-up that the next one sends


@dataclass(frozen=True)
class TopK:
    """The entries of largest absolute value, from all arrays together; the others count as 0 (Aji and Heafield 2017,
    "Sparse communication for distributed gradient descent").

    A message is the values of these entries, then their places, packed to the bit. Of equal entries the first ones are
    sent. Use it in an `ErrorFeedback`, or small entries are never sent.

    Arguments:
    - `fraction`: of all entries, above 0 and up to 1, rounded up to whole ones.
    - `values`: compressor of their values, `NoCompression()` (default: float32), `Int8()`, with one scale for all, or
      `Signs()`, with one mean for the entries of each array (Sattler et al. 2019, "Robust and communication-efficient
      federated learning from non-IID data").
    - `warm_up`: for so many rounds a quarter of the entries is sent, for as many a sixteenth, and so on down to
      `fraction` (default 0: none; Lin et al. 2018, "Deep gradient compression", section 3.3).

    Raises PlanError for another fraction.
    """

    fraction: float
    values: NoCompression | Int8 | Signs = field(default_factory=NoCompression)
    warm_up: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise PlanError(f"top-k sends a fraction above 0 and up to 1 of all entries, not {self.fraction}.")

    def at_round(self, number: int) -> TopK:
        if not self.warm_up:
            return self
        stage = (number - 1) // self.warm_up
        return TopK(max(self.fraction, _QUARTER ** (stage + 1)), self.values)

    def largest_size(self, shapes: Shapes) -> int:
        """Most bytes of a message; places that lie close together take fewer."""
        n, k = self._counts(shapes)
        return self._values_size(shapes) + indices.most(n, k)

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        flat, shapes = flatten(arrays), [array.shape for array in arrays]
        places = _largest(np.abs(flat), self._counts(shapes)[1])
        values = split(flat[places], self._parts(places, shapes))
        return self.values.encode(values, rng, state) + indices.pack(places, len(flat))

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        n, k = self._counts(shapes)
        start = self._values_size(shapes)
        if not start <= len(data) <= self.largest_size(shapes):
            raise FormatError(
                f"A message of {len(data):,} bytes can't be the {k:,} largest of {n:,} values. Sender and receiver "
                "must use the same compression and the same network."
            )
        places = indices.unpack(data[start:], n, k)
        flat = np.zeros(n, np.float32)
        flat[places] = np.concatenate(self.values.decode(data[:start], self._parts(places, shapes)))
        return split(flat, shapes)

    def _parts(self, places: np.ndarray, shapes: Shapes) -> Shapes:
        """The shapes in which the values of these places are compressed: those of each array apart, or all as one."""
        if not isinstance(self.values, Signs):
            return [(len(places),)]
        ends = np.searchsorted(places, np.cumsum([0, *map(prod, shapes)]))
        return [(int(size),) for size in np.diff(ends)]

    def _values_size(self, shapes: Shapes) -> int:
        """Bytes of the values in a message."""
        k, others = self._counts(shapes)[1], len(shapes) - 1
        # However many entries each array sends: the size depends on how many all send, and on the number of arrays.
        return self.values.size([(k,), *[(0,)] * (others if isinstance(self.values, Signs) else 0)])

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
