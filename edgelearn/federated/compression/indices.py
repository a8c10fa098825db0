"""Ascending indices, packed to the bit as Elias (1974) and Fano (1971) do.

`count` indices below `limit` are split into `low_bits(limit, count)` low bits each, packed as they are, and high parts.
These ascend: in a row of bits, a one stands for an index and a zero for a step of the high part. That is about 2 bits
an index besides the low bits, a few per cent above the least possible. The size depends on `limit` and `count` alone.
"""

from __future__ import annotations

import numpy as np

from edgelearn.errors import FormatError


def low_bits(limit: int, count: int) -> int:
    """Low bits of an index."""
    return max(0, (limit // max(1, count)).bit_length() - 1)


def size(limit: int, count: int) -> int:
    """Bytes of `count` ascending indices below `limit`."""
    return -(-_bits(limit, count) // 8)


def pack(indices: np.ndarray, limit: int) -> bytes:
    """Return the bytes of ascending indices, int (count,), all below `limit`."""
    count = len(indices)
    low = low_bits(limit, count)
    bits = np.zeros(_bits(limit, count), np.uint8)
    bits[: count * low] = ((indices[:, None] >> np.arange(low)) & 1).reshape(-1)
    bits[count * low + (indices >> low) + np.arange(count)] = 1
    return np.packbits(bits).tobytes()


def unpack(data: bytes, limit: int, count: int) -> np.ndarray:
    """Return indices, int64 (count,), from `size(limit, count)` bytes. Raises FormatError if these aren't so many
    ascending indices below `limit`."""
    low = low_bits(limit, count)
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    used, ones = _bits(limit, count), np.flatnonzero(bits[count * low :])
    if bits[used:].any() or len(ones) != count:
        raise FormatError(f"A message has {len(ones):,} indices, not {count:,}: leave it out.")
    lows = bits[: count * low].reshape(count, low).astype(np.int64) << np.arange(low)
    indices = ((ones - np.arange(count)) << low) + lows.sum(1)
    if count and ((np.diff(indices) <= 0).any() or indices[-1] >= limit):
        raise FormatError(f"A message has indices that don't ascend or aren't below {limit:,}: leave it out.")
    return indices


def _bits(limit: int, count: int) -> int:
    low = low_bits(limit, count)
    return count * low + (count + (max(0, limit - 1) >> low) if count else 0)
