"""Compressors: arrays become the bytes of a message, as float32, int8, the largest entries or their signs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log, log2, prod, sqrt
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from edgelearn.errors import FormatError, NonFiniteError, PlanError, UsageError

Arrays = list[np.ndarray]
Shapes = Sequence[tuple[int, ...]]
State = dict[str, np.ndarray]

_LARGEST = 127  # integer of int8
_QUARTER = 0.25  # share of the entries of one stage of a warm-up that the next one sends
_GOLDEN = (sqrt(5) - 1) / 2


class Decoder(Protocol):
    """Turns the bytes of a message into arrays."""

    def decode(self, data: bytes, shapes: Shapes) -> Arrays:
        """Return arrays of `shapes`, float32 unless the decoder says otherwise. Raises FormatError for bytes that can't
        be these."""
        ...


class Compressor(Decoder, Protocol):
    """Turns arrays into bytes and back. Sender and receiver both know the shapes, so that the bytes needn't say them.

    A lossy one may keep in `state` what it left out (error feedback): arrays by name, which the caller stores from one
    message to the next. One with an attribute `keeps_state` that is True can't do without.
    """

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: State) -> bytes:
        """Return the bytes of float32 `arrays`. `rng` draws what is random; `state` is changed in place."""
        ...


D = TypeVar("D", bound=Decoder)


def at_round(compressor: D, number: int) -> D:
    """Return a round's compressor: `compressor.at_round(number)` if it has that method, else `compressor` itself."""
    method = getattr(compressor, "at_round", None)
    return method(number) if method else compressor


def start_of(compressor: Compressor, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> Arrays:
    """Return the weights from which a client trains that received `arrays`: `compressor.start(arrays, state)` if it has
    that method, else `arrays` themselves."""
    method = getattr(compressor, "start", None)
    return method(arrays, state) if method else list(arrays)


def keeps_state(compressor: Compressor) -> bool:
    """True for a compressor that loses something unless its `state` is kept from message to message."""
    return getattr(compressor, "keeps_state", False)


def flatten(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return all values, float32 (n,). Raises NonFiniteError naming the array that has a NaN or infinity."""
    for number, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise NonFiniteError(
                f"Array {number} of {len(arrays)} has a NaN or infinity, which can't be compressed. Lower the learning "
                "rate, or send it as float32."
            )
    return np.concatenate([np.ravel(array) for array in arrays] or [np.empty(0)], dtype=np.float32, casting="same_kind")


def split(flat: np.ndarray, shapes: Shapes) -> Arrays:
    """The inverse of `flatten`."""
    ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def count(shapes: Shapes) -> int:
    """Number of all values."""
    return sum(map(prod, shapes))


def checked(array: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Return `array`, which was stored. Raises FormatError unless it is finite float32 of `shape`."""
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise FormatError(
            f"{what} has shape {array.shape} and type {array.dtype}, or isn't finite; expected finite float32 {shape}. "
            "It is damaged, or belongs to another network."
        )
    return array


def check_size(data: bytes, what: str, most: int, least: int | None = None) -> None:
    """Raises FormatError unless `data` has `least` (default: `most`) to `most` bytes."""
    if not (most if least is None else least) <= len(data) <= most:
        raise FormatError(
            f"A message of {len(data):,} bytes can't be {what}, which takes {most:,}. Sender and receiver must use the "
            "same compression and the same network."
        )


class _Values(Compressor):
    """Base of the codes with the same number of bits for each value, after a float32 for each array, its scale."""

    bits: ClassVar[int]
    what: ClassVar[str]
    scales: ClassVar[bool] = True

    def size(self, values: int, arrays: int) -> int:
        """Number of bytes of so many values of so many arrays."""
        return 4 * arrays * self.scales - (-values * self.bits // 8)

    def decode(self, data, shapes):
        check_size(data, f"{count(shapes):,} {self.what}", self.size(count(shapes), len(shapes)))
        scales = np.frombuffer(data, "<f4", len(shapes) * self.scales).astype(np.float32)
        values = self._read(np.frombuffer(data, np.uint8, offset=4 * len(scales)), count(shapes))
        if self.scales:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * np.repeat(scales, [prod(shape) for shape in shapes])
            if not (np.isfinite(scales) & (scales >= 0)).all() or not np.isfinite(values).all():
                raise FormatError(f"A message of {self.what} has a scale below 0 or not finite: leave it out.")
        return split(values, shapes)

    def _read(self, data: np.ndarray, values: int) -> np.ndarray:
        """The values before they are scaled, float32, from their bytes, uint8."""
        raise NotImplementedError


class NoCompression(_Values):
    """float32, little-endian, packed without gaps."""

    bits, what, scales = 32, "values in float32", False

    def encode(self, arrays, rng, state):
        return b"".join(np.ascontiguousarray(array, "<f4").tobytes() for array in arrays)

    def _read(self, data, values):
        return data.view("<f4").astype(np.float32)


@dataclass(frozen=True)
class Int8(_Values):
    """Integers of 8 bits with a float32 scale for each array, rounded up or down at random so that the mean is exact
    (Alistarh et al. 2017, "QSGD").

    A message is the scales, then the integers. Scale times 127 is the largest absolute value of an array.
    """

    bits, what = 8, "values in int8"

    def encode(self, arrays, rng, state):
        flat, shapes = flatten(arrays), [array.shape for array in arrays]
        scales = np.array([np.abs(part).max(initial=0) / _LARGEST for part in split(flat, shapes)], "<f4")
        scale = np.repeat(scales.astype(np.float64), [array.size for array in arrays])
        scaled = np.divide(flat, scale, out=np.zeros(len(flat)), where=scale > 0)
        rounded = np.floor(scaled + rng.random(len(flat)))
        return scales.tobytes() + np.clip(rounded, -_LARGEST, _LARGEST).astype(np.int8).tobytes()

    def _read(self, data, values):
        return data.view(np.int8).astype(np.float32)


@dataclass(frozen=True)
class Signs(_Values):
    """A bit for each entry, and the mean absolute value of each array, which all its entries get (Seide et al. 2014;
    with `TopK`, Sattler et al. 2019, "Robust and communication-efficient federated learning from non-IID data").

    A message is the means, float32, then the bits of all arrays. Its errors aren't 0 on average: use it in an
    `ErrorFeedback`.
    """

    bits, what = 1, "signs"

    def encode(self, arrays, rng, state):
        means = [np.abs(array).mean(dtype=np.float64) if array.size else 0.0 for array in arrays]
        return np.array(means, "<f4").tobytes() + np.packbits(flatten(arrays) > 0).tobytes()

    def _read(self, data, values):
        bits = np.unpackbits(data)
        if bits[values:].any():
            raise FormatError("A message of signs has more bits than values: leave it out.")
        return 2 * bits[:values].astype(np.float32) - 1


@dataclass(frozen=True)
class TopK(Compressor):
    """The entries of largest absolute value, from all arrays together; the others count as 0 (Aji and Heafield 2017,
    "Sparse communication for distributed gradient descent").

    A message is the values of these entries, then their places, packed to the bit. Of equal entries the first ones are
    sent. Use it in an `ErrorFeedback`, or small entries are never sent.

    Arguments:
    - `fraction`: share of all entries, above 0 and up to 1, rounded up to whole ones.
    - `values`: compressor of their values, `NoCompression()` (default: float32), `Int8()`, with one scale for all, or
      `Signs()`, with one mean for the entries of each array (Sattler et al. 2019, "Robust and communication-efficient
      federated learning from non-IID data").
    - `warm_up`: rounds of a stage: for so many a quarter of the entries is sent, for as many a sixteenth, and so on
      down to `fraction` (default 0: none; Lin et al. 2018, "Deep gradient compression", section 3.3).

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

    def encode(self, arrays, rng, state):
        flat, shapes = flatten(arrays), [array.shape for array in arrays]
        sizes, k = np.abs(flat), self._sent(len(flat))
        least = np.partition(sizes, len(sizes) - k)[len(sizes) - k] if k else np.inf
        above = np.flatnonzero(sizes > least)
        places = np.sort(np.concatenate([above, np.flatnonzero(sizes == least)[: k - len(above)]]))
        return self.values.encode(split(flat[places], self._parts(places, shapes)), rng, state) + pack_indices(
            places, len(flat)
        )

    def decode(self, data, shapes):
        n = count(shapes)
        k = self._sent(n)
        # However many entries each array sends: the size depends on how many all send, and on the number of arrays.
        end = self.values.size(k, len(shapes) if isinstance(self.values, Signs) else 1)
        check_size(data, f"the {k:,} largest of {n:,} values", end + most_bytes(n, k), least=end)
        places = unpack_indices(data[end:], n, k)
        flat = np.zeros(n, np.float32)
        flat[places] = np.concatenate(self.values.decode(data[:end], self._parts(places, shapes)))
        return split(flat, shapes)

    def _parts(self, places: np.ndarray, shapes: Shapes) -> Shapes:
        """The shapes in which the values of these places are compressed: those of each array apart, or all as one."""
        if not isinstance(self.values, Signs):
            return [(len(places),)]
        ends = np.searchsorted(places, np.cumsum([0, *map(prod, shapes)]))
        return [(int(size),) for size in np.diff(ends)]

    def _sent(self, values: int) -> int:
        """Number of entries that are sent of so many."""
        return min(values, ceil(self.fraction * values))


# Places of the largest entries are ascending indices in a Golomb-Rice code (Golomb 1966; Rice 1979) of the gaps between
# them. The lowest `low_bits` bits of all gaps come first, as they are; after them the rest of each gap is so many zeros
# and a one. The number of low bits is the best one for indices drawn at random, which then take at most 3 % more than
# the entropy if they are up to a fifth of all.


def low_bits(limit: int, count: int) -> int:
    """Low bits of a gap: Kiely 2004, "Selecting the Golomb parameter in Rice coding", equation 14."""
    if not 0 < count < limit:
        return 0
    return max(0, 1 + floor(log2(log(_GOLDEN) / log(1 - count / limit))))


def most_bytes(limit: int, count: int) -> int:
    """Bytes that `count` ascending indices below `limit` take at most; those that lie close together take fewer."""
    low = low_bits(limit, count)
    return -(-(count * (low + 1) + ((limit - count) >> low)) // 8) if count else 0


def pack_indices(indices: np.ndarray, limit: int) -> bytes:
    """Return the bytes of ascending indices, int (count,), all below `limit`."""
    count = len(indices)
    low = low_bits(limit, count)
    gaps = np.diff(indices, prepend=-1) - 1
    ends = count * low + np.cumsum((gaps >> low) + 1)  # after each one
    bits = np.zeros(ends[-1] if count else 0, np.uint8)
    bits[: count * low] = ((gaps[:, None] >> np.arange(low)) & 1).reshape(-1)
    bits[ends - 1] = 1
    return np.packbits(bits).tobytes()


def unpack_indices(data: bytes, limit: int, count: int) -> np.ndarray:
    """Return indices, int64 (count,), of what `pack_indices` returned. Raises FormatError if these aren't so many
    ascending indices below `limit`, in as few bytes as they need."""
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


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
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

    def start(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> Arrays:
        """Return the weights from which a client trains that received `arrays`."""
        return self._wanted(arrays, state) if self.ahead else list(arrays)

    def encode(self, arrays, rng, state):
        wanted = self._wanted(arrays, state)
        data = self.compressor.encode(wanted, rng, state)
        sent = self.compressor.decode(data, [array.shape for array in arrays])
        state |= {f"left out/{number}": w - s for number, (w, s) in enumerate(zip(wanted, sent, strict=True))}
        return data

    def decode(self, data, shapes):
        return self.compressor.decode(data, shapes)

    def _wanted(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> Arrays:
        """Arrays and what was left out of them in the last message."""
        late = [state.get(f"left out/{n}", np.zeros(array.shape, np.float32)) for n, array in enumerate(arrays)]
        return [
            array + checked(kept, array.shape, f"What a client kept of array {number}")
            for number, (array, kept) in enumerate(zip(arrays, late, strict=True))
        ]


@dataclass(frozen=True)
class Partly(Compressor):
    """Compresses some arrays and sends the others as float32: a lossy change of a variance may make it negative, and
    changes of statistics are large beside those of weights, so that top-k would send nothing else.

    Arguments:
    - `compressor`: compressor of the arrays that are compressed.
    - `exact`: True for each array that is sent as float32.
    """

    compressor: Compressor
    exact: tuple[bool, ...]

    @property
    def keeps_state(self) -> bool:
        return keeps_state(self.compressor)

    def at_round(self, number: int) -> Partly:
        return replace(self, compressor=at_round(self.compressor, number))

    def start(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> Arrays:
        lossy, exact = self._divided(arrays)
        return self._joined(start_of(self.compressor, lossy, state), exact)

    def encode(self, arrays, rng, state):
        lossy, exact = self._divided(arrays)
        return self.compressor.encode(lossy, rng, state) + NoCompression().encode(exact, rng, state)

    def decode(self, data, shapes):
        lossy, exact = self._divided(shapes)
        end = len(data) - 4 * count(exact)
        if end < 0:
            raise FormatError(f"{len(data):,} bytes are too few for {len(exact)} arrays of float32.")
        return self._joined(self.compressor.decode(data[:end], lossy), NoCompression().decode(data[end:], exact))

    def _divided(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(values, self.exact, strict=True))
        return [value for value, exact in pairs if not exact], [value for value, exact in pairs if exact]

    def _joined(self, lossy: Arrays, exact: Arrays) -> Arrays:
        parts = iter(lossy), iter(exact)
        return [next(parts[whole]) for whole in self.exact]


_TOP_K = re.compile(
    r"topk:(?P<fraction>[\d.]*\d(e-\d+)?)(\+(?P<values>int8|sign))?(\+warmup:(?P<rounds>\d{1,9}))?(?P<ahead>\+ahead)?"
)
_VALUES = {None: NoCompression, "float32": NoCompression, "int8": Int8, "sign": Signs}


def make_compressor(name: str) -> Compressor:
    """Return a compressor by name: `"float32"`, `"int8"`, `"topk:0.01"` (the largest hundredth of the entries),
    `"topk:0.01+int8"` or `"topk:0.15+sign"` (a sign for each, with a mean size for each array). Top-k may have a
    warm-up, here with stages of five rounds, `"topk:0.01+int8+warmup:5"`, and clients that train ahead, from what they
    received plus what they left out, `"topk:0.01+int8+warmup:5+ahead"`.

    Those with top-k have error feedback. int8 has none, since its errors are 0 on average.

    Raises UsageError for another name.
    """
    if name in ("float32", "int8"):  # signs alone need error feedback
        return _VALUES[name]()
    if found := _TOP_K.fullmatch(name):
        values = _VALUES[found["values"]]()
        return ErrorFeedback(TopK(float(found["fraction"]), values, int(found["rounds"] or 0)), bool(found["ahead"]))
    raise UsageError(
        f"'{name}' is no compression: choose float32, int8, topk:0.01, topk:0.01+int8, topk:0.15+sign, "
        "topk:0.01+int8+warmup:5 or topk:0.01+int8+warmup:5+ahead."
    )


# A message from the server begins with its kind, a byte, and the version of the weights, four bytes.
_WHOLE, _CHANGE, _HEADER = b"\0", b"\1", 5


class Downlink:
    """The server's side of compressed weights. It keeps those that clients can compute from its messages, which are the
    same for all.

    A message holds the change of these since the message before, or, for a client that doesn't have that one, all of
    them as float32. What a lossy compressor leaves out stays in the difference to the server's own weights, and is sent
    later: error feedback needs no memory besides.

    Arguments:
    - `compressor`: compressor of changes.
    - `arrays`: weights before the first message, float32.
    """

    def __init__(self, compressor: Compressor, arrays: Sequence[np.ndarray]) -> None:
        self.compressor, self.version = compressor, 0
        self.arrays = [np.array(array, np.float32) for array in arrays]
        self.versions: dict[int, int] = {}  # by client: the last message it got
        self._change = b""
        self._messages: dict[bool, bytes] = {}  # of this round, which clients share: all weights, and their change

    def advance(self, weights: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        """Make the messages of the next round. `weights`: the server's; `rng` draws what is random."""
        compressor = at_round(self.compressor, self.version + 1)
        self._change = compressor.encode([new - old for new, old in zip(weights, self.arrays, strict=True)], rng, {})
        change = compressor.decode(self._change, [array.shape for array in self.arrays])
        self.arrays = [old + d for old, d in zip(self.arrays, change, strict=True)]
        self.version += 1
        self._messages = {}

    def message(self, client: int) -> bytes:
        """Return the message of this round for a client, and count it as received."""
        changes = self.version > 0 and self.versions.get(client) == self.version - 1
        self.versions[client] = self.version
        if changes not in self._messages:
            payload = self._change if changes else NoCompression().encode(self.arrays, np.random.default_rng(0), {})
            self._messages[changes] = (_CHANGE if changes else _WHOLE) + self.version.to_bytes(4, "little") + payload
        return self._messages[changes]

    def forget(self, client: int) -> None:
        """Send all weights to a client next time, as after a failure."""
        self.versions.pop(client, None)

    def state(self) -> State:
        """Arrays for a checkpoint, by name."""
        clients = np.array(sorted(self.versions.items()), np.int64).reshape(-1, 2)
        return _kept(self.arrays, self.version) | {"clients": clients}

    def restore(self, state: State) -> None:
        """Return to where `state` was called. Raises KeyError or FormatError, and changes nothing, if that was another
        federation."""
        clients = state["clients"]
        if clients.shape[1:] != (2,) or clients.dtype.kind != "i":
            raise FormatError(f"The versions of clients have shape {clients.shape} and type {clients.dtype}.")
        arrays = [
            np.array(checked(state[f"weights/{number}"], array.shape, f"The weights {number} that clients have"))
            for number, array in enumerate(self.arrays)
        ]
        self.version, self.arrays, self._messages = _version(state), arrays, {}
        self.versions = {int(client): int(version) for client, version in clients}


def receive(compressor: Compressor, data: bytes, shapes: Shapes, state: State) -> Arrays:
    """Return the weights that a client has after a message of a `Downlink`.

    Arguments:
    - `compressor`: the server's.
    - `data`: the message.
    - `shapes`: shapes of the weights.
    - `state`: what the client keeps, by name; it is changed in place.

    Raises FormatError for bytes that can't be a message, and for a change of weights that the client doesn't have.
    """
    kind, version = data[:1], int.from_bytes(data[1:_HEADER], "little")
    if len(data) < _HEADER or kind not in (_WHOLE, _CHANGE):
        raise FormatError(f"{len(data):,} bytes are no weights from a server: leave the message out.")
    if kind == _WHOLE:
        arrays = NoCompression().decode(data[_HEADER:], shapes)
    else:
        own = [state[name] for number in range(len(shapes)) if (name := f"weights/{number}") in state]
        has = _version(state) if "version" in state else None
        if has != version - 1 or len(own) < len(shapes):
            raise FormatError(
                f"A message changes version {version - 1} of the weights, but this client has {has or 'none'}. "
                "Have the server send all of them."
            )
        change = at_round(compressor, version).decode(data[_HEADER:], shapes)
        arrays = [
            checked(old, d.shape, "What a client kept of the weights") + d for old, d in zip(own, change, strict=True)
        ]
    state |= _kept(arrays, version)
    return arrays


def _kept(arrays: Sequence[np.ndarray], version: int) -> State:
    """State that both sides keep of the weights that a client has."""
    return {f"weights/{number}": array for number, array in enumerate(arrays)} | {"version": np.array([version])}


def _version(state: State) -> int:
    """Return the number of the last message. Raises FormatError for what is none."""
    stored = state["version"]
    if stored.shape != (1,) or stored.dtype.kind != "i" or not 0 <= stored[0] < 1 << 32:
        raise FormatError(f"The version of the weights is {stored!r:.60}, not one whole number.")
    return int(stored[0])
