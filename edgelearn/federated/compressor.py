"""How arrays become the bytes of a message."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

import numpy as np

from edgelearn.errors import FormatError

Shapes = Sequence[tuple[int, ...]]


class Compressor(Protocol):
    """Turns arrays into bytes and back. Sender and receiver both know the shapes, so that the bytes needn't say them.

    A lossy one may keep in `state` what it left out (error feedback): arrays by name, which the caller stores from one
    message to the next.
    """

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        """Return the bytes of float32 `arrays`. `rng` draws what is random; `state` is changed in place."""
        ...

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        """Return float32 arrays of `shapes`. Raises FormatError for bytes that can't be these."""
        ...


class NoCompression:
    """float32, little-endian, packed without gaps."""

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        return b"".join(np.ascontiguousarray(array, "<f4").tobytes() for array in arrays)

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        sizes = [prod(shape) for shape in shapes]
        if len(data) != 4 * sum(sizes):
            raise FormatError(f"{len(data):,} bytes are not the {4 * sum(sizes):,} of {sum(sizes):,} float32 values.")
        flat = np.frombuffer(data, "<f4").astype(np.float32)
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
