"""How arrays become the bytes of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np

from edgelearn.errors import FormatError

Shapes = Sequence[tuple[int, ...]]


class Decoder(Protocol):
    """Turns the bytes of a message into arrays."""

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        """Return arrays of `shapes`, float32 unless the decoder says otherwise. Raises FormatError for bytes that can't
        be these."""
        ...


class Compressor(Decoder, Protocol):
    """Turns arrays into bytes and back. Sender and receiver both know the shapes, so that the bytes needn't say them.

    A lossy one may keep in `state` what it left out (error feedback): arrays by name, which the caller stores from one
    message to the next. One with an attribute `keeps_state` that is True can't do without.
    """

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        """Return the bytes of float32 `arrays`. `rng` draws what is random; `state` is changed in place."""
        ...


D = TypeVar("D", bound=Decoder)


def at_round(compressor: D, number: int) -> D:
    """Return a round's compressor: `compressor.at_round(number)` if it has that method, else `compressor` itself."""
    method = getattr(compressor, "at_round", None)
    return method(number) if method else compressor


def start_of(
    compressor: Compressor, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]
) -> list[np.ndarray]:  # fmt: skip
    """Return the weights from which a client trains that received `arrays`: `compressor.start(arrays, state)` if it has
    that method, else `arrays` themselves."""
    method = getattr(compressor, "start", None)
    return method(arrays, state) if method else list(arrays)


def keeps_state(compressor: Compressor) -> bool:
    """True for a compressor that loses something unless its `state` is kept from message to message."""
    return getattr(compressor, "keeps_state", False)


class NoCompression:
    """float32, little-endian, packed without gaps."""

    def size(self, shapes: Shapes) -> int:
        """Bytes of a message."""
        return 4 * sum(map(prod, shapes))

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        return b"".join(np.ascontiguousarray(array, "<f4").tobytes() for array in arrays)

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        sizes = [prod(shape) for shape in shapes]
        if len(data) != (size := self.size(shapes)):
            raise FormatError(f"{len(data):,} bytes are not the {size:,} of {sum(sizes):,} float32 values.")
        flat = np.frombuffer(data, "<f4").astype(np.float32)
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True)
class Partly:
    """Compresses some arrays and sends the others as float32: a lossy change of a variance may make it negative, and
    changes of statistics are large beside those of weights, so that top-k would send nothing else.

    Arguments:
    - `compressor`: of the arrays that are compressed.
    - `exact`: for each array, whether it is sent as float32.
    """

    compressor: Compressor
    exact: tuple[bool, ...]

    @property
    def keeps_state(self) -> bool:
        return keeps_state(self.compressor)

    def at_round(self, number: int) -> Partly:
        return replace(self, compressor=at_round(self.compressor, number))

    def start(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        lossy, exact = self._divided(arrays)
        parts = iter(start_of(self.compressor, lossy, state)), iter(exact)
        return [next(parts[whole]) for whole in self.exact]

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        lossy, exact = self._divided(arrays)
        return self.compressor.encode(lossy, rng, state) + NoCompression().encode(exact, rng, state)

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        lossy, exact = self._divided(shapes)
        end = len(data) - NoCompression().size(exact)
        if end < 0:
            raise FormatError(f"{len(data):,} bytes are too few for {len(exact)} arrays of float32.")
        parts = iter(self.compressor.decode(data[:end], lossy)), iter(NoCompression().decode(data[end:], exact))
        return [next(parts[whole]) for whole in self.exact]

    def _divided(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        lossy = [value for value, exact in zip(values, self.exact, strict=True) if not exact]
        return lossy, [value for value, exact in zip(values, self.exact, strict=True) if exact]
