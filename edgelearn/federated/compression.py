"""How arrays become the bytes of a message: float32, int8, the largest entries or their signs, with error feedback.

Places of the largest entries are ascending indices, packed to the bit by a Golomb-Rice code (Golomb 1966; Rice 1979):
`pack` codes the number of places between an index and the one before. The lowest `low_bits(limit, count)` bits of all
such gaps come first, as they are; after them the rest of each gap is so many zeros and a one. The number of low bits is
the best one for indices drawn at random, which then take at most 3 % more than the entropy if they are up to a fifth of
all. The size depends on the indices; `most` is the largest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log, log2, prod, sqrt
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from edgelearn.errors import FormatError, NonFiniteError, PlanError, UsageError

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
        return self._values_size(shapes) + most(n, k)

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        flat, shapes = flatten(arrays), [array.shape for array in arrays]
        places = _largest(np.abs(flat), self._counts(shapes)[1])
        values = split(flat[places], self._parts(places, shapes))
        return self.values.encode(values, rng, state) + pack(places, len(flat))

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        n, k = self._counts(shapes)
        start = self._values_size(shapes)
        if not start <= len(data) <= self.largest_size(shapes):
            raise FormatError(
                f"A message of {len(data):,} bytes can't be the {k:,} largest of {n:,} values. Sender and receiver "
                "must use the same compression and the same network."
            )
        places = unpack(data[start:], n, k)
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


@dataclass(frozen=True)
class ErrorFeedback:
    """Another compressor, whose errors are kept in the sender's state and added to what it sends next (Seide et al.
    2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019 on why it converges).

    Arguments:
    - `compressor`: the lossy one, such as `TopK(0.01)`.
    - `ahead`: clients train from the weights that they received plus what they left out so far, so that they don't find
      it again in each round (default False).
    """

    compressor: Compressor
    ahead: bool = False
    keeps_state: ClassVar[bool] = True

    def at_round(self, number: int) -> ErrorFeedback:
        return replace(self, compressor=at_round(self.compressor, number))

    def start(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the weights from which a client trains that received `arrays`."""
        if not self.ahead:
            return list(arrays)
        return [array + _kept(state, number, array.shape) for number, array in enumerate(arrays)]

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        wanted = [array + _kept(state, number, array.shape) for number, array in enumerate(arrays)]
        data = self.compressor.encode(wanted, rng, state)
        sent = self.compressor.decode(data, [array.shape for array in arrays])
        state |= {_left_out(number): w - s for number, (w, s) in enumerate(zip(wanted, sent, strict=True))}
        return data

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        return self.compressor.decode(data, shapes)


def _kept(state: Mapping[str, np.ndarray], number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the part of an array that was left out of the last message."""
    kept = state.get(_left_out(number), np.zeros(shape, np.float32))
    return checked(kept, shape, f"What a client kept of array {number}")


def _left_out(number: int) -> str:
    """The key in the state of what was left out of an array."""
    return f"left out/{number}"


_VALUES = {None: NoCompression, "int8": Int8, "sign": Signs}
_TOP_K = re.compile(
    r"topk:(?P<fraction>[\d.]*\d(e-\d+)?)(\+(?P<values>int8|sign))?(\+warmup:(?P<rounds>\d{1,9}))?(?P<ahead>\+ahead)?"
)


def make_compressor(name: str) -> Compressor:
    """Return a compressor by name: `"float32"`, `"int8"`, `"topk:0.01"` (the largest hundredth of the entries),
    `"topk:0.01+int8"` or `"topk:0.15+sign"` (a sign for each, with a mean size for each array). Top-k may have a
    warm-up, here with stages of five rounds, `"topk:0.01+int8+warmup:5"`, and clients that train ahead, from what they
    received plus what they left out, `"topk:0.01+int8+warmup:5+ahead"`.

    Those with top-k have error feedback. int8 has none, since its errors are 0 on average.

    Raises UsageError for another name.
    """
    if name == "float32":
        return NoCompression()
    if name == "int8":
        return Int8()
    if found := _TOP_K.fullmatch(name):
        values = _VALUES[found["values"]]()
        return ErrorFeedback(TopK(float(found["fraction"]), values, int(found["rounds"] or 0)), bool(found["ahead"]))
    raise UsageError(
        f"'{name}' is no compression: choose float32, int8, topk:0.01, topk:0.01+int8, topk:0.15+sign, "
        "topk:0.01+int8+warmup:5 or topk:0.01+int8+warmup:5+ahead."
    )


_WHOLE, _CHANGE = 0, 1
_HEADER = 5  # bytes: kind, version


class Downlink:
    """The server's side. It keeps the weights that clients can compute from its messages, which are the same for all.

    A message holds the change of these since the message before, or, for a client that doesn't have that one, all of
    them as float32. What a lossy compressor leaves out stays in the difference to the server's own weights, and is sent
    later: error feedback needs no memory besides.

    Arguments:
    - `compressor`: of changes.
    - `arrays`: weights before the first message, float32.
    """

    def __init__(self, compressor: Compressor, arrays: Sequence[np.ndarray]) -> None:
        self.compressor, self.version = compressor, 0
        self.arrays = [np.array(array, np.float32) for array in arrays]
        self.versions: dict[int, int] = {}  # by client: the last message it got
        self._change = b""

    def advance(self, weights: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        """Make the messages of the next round. `weights`: the server's; `rng` draws what is random."""
        shapes = [array.shape for array in self.arrays]
        difference = [new - old for new, old in zip(weights, self.arrays, strict=True)]
        compressor = at_round(self.compressor, self.version + 1)
        self._change = compressor.encode(difference, rng, {})
        change = compressor.decode(self._change, shapes)
        self.arrays = [old + d for old, d in zip(self.arrays, change, strict=True)]
        self.version += 1

    def message(self, client: int) -> bytes:
        """Return the message of this round for a client, and count it as received."""
        has_last = self.version > 0 and self.versions.get(client) == self.version - 1
        self.versions[client] = self.version
        kind, payload = (_CHANGE, self._change) if has_last else (_WHOLE, _encode_whole(self.arrays))
        return bytes([kind]) + self.version.to_bytes(4, "little") + payload

    def forget(self, client: int) -> None:
        """Send all weights to a client next time, as after a failure."""
        self.versions.pop(client, None)

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for a checkpoint, by name."""
        clients = np.array(sorted(self.versions.items()), np.int64).reshape(-1, 2)
        arrays = {_weights_name(number): array for number, array in enumerate(self.arrays)}
        return arrays | {"version": np.array([self.version]), "clients": clients}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Return to where `state` was called. Raises KeyError or FormatError, and changes nothing, if that was another
        federation."""
        clients = state["clients"]
        if clients.shape[1:] != (2,) or clients.dtype.kind != "i":
            raise FormatError(f"The versions of clients have shape {clients.shape} and type {clients.dtype}.")
        arrays = [
            np.array(checked(state[_weights_name(number)], array.shape, f"The weights {number} that clients have"))
            for number, array in enumerate(self.arrays)
        ]
        self.version, self.arrays = _version(state), arrays
        self.versions = {int(client): int(version) for client, version in clients}


class Copy:
    """A client's side: the weights as the messages of a `Downlink` left them.

    Arguments:
    - `compressor`: the server's.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor

    def receive(self, data: bytes, shapes: Shapes, state: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the weights after a message. `state`: what the client keeps, by name; it is changed in place.

        Raises FormatError for bytes that can't be a message, and for a change of weights that the client doesn't have.
        """
        kind, version = data[:1], int.from_bytes(data[1:_HEADER], "little")
        if len(data) < _HEADER or kind not in (bytes([_WHOLE]), bytes([_CHANGE])):
            raise FormatError(f"{len(data):,} bytes are no weights from a server: leave the message out.")
        if kind == bytes([_WHOLE]):
            arrays = NoCompression().decode(data[_HEADER:], shapes)
        else:
            own = [state.get(_weights_name(number)) for number in range(len(shapes))]
            has = _version(state) if "version" in state else None
            if has != version - 1 or any(array is None for array in own):
                raise FormatError(
                    f"A message changes version {version - 1} of the weights, but this client has {has or 'none'}. "
                    "Have the server send all of them."
                )
            change = at_round(self.compressor, version).decode(data[_HEADER:], shapes)
            arrays = [
                checked(old, d.shape, "What a client kept of the weights") + d
                for old, d in zip(own, change, strict=True)
                if old is not None
            ]
        state |= {_weights_name(number): array for number, array in enumerate(arrays)} | {
            "version": np.array([version])
        }
        return arrays


def _encode_whole(arrays: Sequence[np.ndarray]) -> bytes:
    return NoCompression().encode(arrays, np.random.default_rng(0), {})


def _version(state: dict[str, np.ndarray]) -> int:
    """Return the number of the last message. Raises FormatError for what is none."""
    stored = state["version"]
    if stored.shape != (1,) or stored.dtype.kind != "i" or not 0 <= stored[0] < 1 << 32:
        raise FormatError(f"The version of the weights is {stored!r:.60}, not one whole number.")
    return int(stored[0])


def _weights_name(number: int) -> str:
    return f"weights/{number}"
