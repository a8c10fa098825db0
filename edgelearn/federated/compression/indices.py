"""Ascending indices, packed to the bit by a Golomb-Rice code (Golomb 1966; Rice 1979).

What is coded is the number of places between an index and the one before. The lowest `low_bits(limit, count)` bits of
all such gaps come first, as they are; behind them the rest of each gap is so many zeros and a one. The number of low
bits is the best one for indices drawn at random, which then take at most 3 % more than the entropy if they are up to a
fifth of all. The size depends on the indices; `most` is the largest.
"""

from __future__ import annotations

from math import floor, log, log2, sqrt

import numpy as np

from edgelearn.errors import FormatError

_GOLDEN = (sqrt(5) - 1) / 2


def low_bits(limit: int, count: int) -> int:
    """Low bits of a gap: Kiely 2004, "Selecting the Golomb parameter in Rice coding", equation 14."""
    if not 0 < count < limit:
        return 0
    return max(0, 1 + floor(log2(log(_GOLDEN) / log(1 - count / limit))))


def most(limit: int, count: int) -> int:
    """Bytes that `count` ascending indices below `limit` take at most."""
    low = low_bits(limit, count)
    return -(-(count * (low + 1) + ((limit - count) >> low)) // 8) if count else 0


def pack(indices: np.ndarray, limit: int) -> bytes:
    """Return the bytes of ascending indices, int (count,), all below `limit`."""
    count = len(indices)
    low = low_bits(limit, count)
    gaps = np.diff(indices, prepend=-1) - 1
    ends = count * low + np.cumsum((gaps >> low) + 1)  # behind each one
    bits = np.zeros(ends[-1] if count else 0, np.uint8)
    bits[: count * low] = ((gaps[:, None] >> np.arange(low)) & 1).reshape(-1)
    bits[ends - 1] = 1
    return np.packbits(bits).tobytes()


def unpack(data: bytes, limit: int, count: int) -> np.ndarray:
    """Return indices, int64 (count,), of what `pack` returned. Raises FormatError if these aren't so many ascending
    indices below `limit`, in as few bytes as they need."""
    low = low_bits(limit, count)
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    ones = np.flatnonzero(bits[count * low :])
    used = count * low + (int(ones[-1]) + 1 if len(ones) else 0)
    if len(ones) != count or len(data) != -(-used // 8):
        raise FormatError(f"A message has {len(ones):,} indices in {len(data):,} bytes, not {count:,}: leave it out.")
    lows = (bits[: count * low].reshape(count, low).astype(np.int64) << np.arange(low)).sum(1)
    indices = np.cumsum((np.diff(ones, prepend=-1) - 1 << low) + lows + 1) - 1
    if count and indices[-1] >= limit:
        raise FormatError(f"A message has indices that aren't below {limit:,}: leave it out.")
    return indices
