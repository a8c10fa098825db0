"""User verification: a network that accepts its user's recordings, trained without anybody else's embeddings.

Codewords of users are far from each other by the design of a BCH code (Bose and Ray-Chaudhuri 1960), or random. A code
of length n = 2^m - 1 with designed distance d has the generator polynomial of least degree that has the roots α, α², …,
α^(d-1), where α generates the field of 2^m elements. Polynomials over two elements are ints: bit i is the coefficient
of x^i.
"""

from __future__ import annotations

import os
import secrets
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from math import floor
from operator import xor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgelearn import atomic
from edgelearn.errors import DataError, FormatError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.interop import safetensors
from edgelearn.ops import (
    CategoricalCrossentropy,
    CodewordHinge,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    GroupNormalization,
    Loss,
    Op,
    PositiveHinge,
    ReLU,
    Rescaling,
    SiLU,
)

from .strategy import FedAdam

NUMBER_BITS = 32  # of a user's number, which the server hands out once
_DESIGNS = {127: (64, 21), 255: (71, 59), 511: (67, 175)}  # dimension and distance by length
_FIELDS = {7: 0b10001001, 8: 0b100011101, 9: 0b1000010001}  # primitive polynomials by m, those of galois and MATLAB


@dataclass(frozen=True)
class BCHCode:
    """A binary, systematic BCH code.

    Arguments:
    - `length`: bits of a codeword: 127, 255 or 511.
    - `dimension`: bits of a message.
    - `distance`: designed distance; two codewords differ in at least so many bits.

    Raises DataError if there is no such code.
    """

    length: int
    dimension: int
    distance: int

    def __post_init__(self) -> None:
        if self.length + 1 not in [1 << m for m in _FIELDS]:
            raise DataError(f"Codewords have {', '.join(str((1 << m) - 1) for m in _FIELDS)} bits, not {self.length}.")
        if self.generator.bit_length() - 1 != self.length - self.dimension:
            raise DataError(
                f"A BCH code of length {self.length} and distance {self.distance} has messages of "
                f"{self.length - self.generator.bit_length() + 1} bits, not {self.dimension}."
            )

    @property
    def secret_bits(self) -> int:
        """Bits of a message that the user draws."""
        return self.dimension - NUMBER_BITS

    @property
    def correlation(self) -> float:
        """The largest of v·w / n for two codewords v and w of -1 and 1."""
        return 1 - 2 * self.distance / self.length

    @cached_property
    def generator(self) -> int:
        """The generator polynomial: the product of the minimal polynomials of its roots."""
        m, powers = self.length.bit_length(), [1]  # α^0, α^1, … as polynomials in α
        while len(powers) < self.length:
            following = powers[-1] << 1
            powers.append(following ^ _FIELDS[m] if following >> m else following)
        product, seen = 1, set()
        for exponent in range(1, self.distance):
            conjugates = {exponent * 2**i % self.length for i in range(m)}
            if min(conjugates) not in seen:
                seen.add(min(conjugates))
                minimal = _minimal_polynomial(conjugates, powers)
                product = reduce(xor, (product << i for i in range(minimal.bit_length()) if minimal >> i & 1))
        return product

    def encode(self, message: int) -> np.ndarray:
        """Return the codeword of a message: uint8 (length,) of 0 and 1, the message's bits first, then the parity.

        Raises DataError for a message that has more than `dimension` bits.
        """
        if not 0 <= message < 1 << self.dimension:
            raise DataError(f"A message of this code has {self.dimension} bits, not {message.bit_length()}.")
        parity_bits = self.length - self.dimension
        remainder = message << parity_bits
        for shift in range(self.dimension - 1, -1, -1):
            if remainder >> (shift + parity_bits) & 1:
                remainder ^= self.generator << shift
        word = message << parity_bits | remainder
        return np.array([word >> i & 1 for i in range(self.length - 1, -1, -1)], np.uint8)

    def draw_secret(self) -> int:
        """Draw the bits that only the user knows, from the system's source of randomness."""
        return secrets.randbits(self.secret_bits)

    def codeword(self, number: int, secret: int) -> np.ndarray:
        """Return a user's codeword, float32 (length,) of -1 and 1.

        Arguments:
        - `number`: number of the user, from the server: 32 bits, no two users have the same.
        - `secret`: `secret_bits` bits that the user drew with `draw_secret`.

        Raises DataError for a number or a secret of more bits.
        """
        for name, value, bits in (("number", number, NUMBER_BITS), ("secret", secret, self.secret_bits)):
            if not 0 <= value < 1 << bits:
                raise DataError(f"A user's {name} has {bits} bits, not {value.bit_length()}, and isn't negative.")
        return signs(self.encode(number << self.secret_bits | secret))


def user_number(user: int, seed: int = 0) -> int:
    """Return the number that the server gives its user `user` (0 to 2^32 - 1): 32 bits, different for each.

    Numbers that count up from 0 would share most bits, and users' codewords would have much in common. `seed` shifts
    them all (default 0).
    """
    mixed = int(user) * 0x9E3779B1 + int(seed) * 0x85EBCA6B + 0x27D4EB2F  # an odd factor: no two are the same
    return mixed & 0xFFFFFFFF


@cache
def code_of(length: int) -> BCHCode:
    """Return the code that FedUV uses at this length. Raises DataError if there is none."""
    if length not in _DESIGNS:
        raise DataError(f"Codewords have {', '.join(map(str, _DESIGNS))} bits, not {length}.")
    return BCHCode(length, *_DESIGNS[length])


def random_codeword(length: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return random signs, float32 (length,). `rng`: default None, the system's source of randomness; a generator with
    a seed is for simulations."""
    if rng is not None:
        return signs(rng.integers(0, 2, length))
    return signs(np.unpackbits(np.frombuffer(secrets.token_bytes(-(-length // 8)), np.uint8))[:length])


def signs(bits: np.ndarray) -> np.ndarray:
    """Return -1 for 0 and 1 for 1, float32."""
    return (2 * np.asarray(bits, np.int8) - 1).astype(np.float32)


def largest_correlation(codewords: np.ndarray) -> float:
    """Return the largest v·w / n of two different rows of codewords (users, n) of -1 and 1."""
    products = codewords @ codewords.T / codewords.shape[1]
    return float((products - 2 * np.eye(len(codewords))).max())


def _minimal_polynomial(conjugates: set[int], powers: list[int]) -> int:
    """Product of (x - α^i) for all i of `conjugates`, whose coefficients are 0 and 1."""
    logarithm = {element: exponent for exponent, element in enumerate(powers)}
    coefficients = [1]  # elements of the field, lowest first
    for root in conjugates:
        scaled = [powers[(logarithm[c] + root) % len(powers)] if c else 0 for c in coefficients]
        coefficients = [a ^ b for a, b in zip([*scaled, 0], [0, *coefficients], strict=True)]
    return sum(c << place for place, c in enumerate(coefficients))


def spread(embeddings: np.ndarray, rate: float, strength: float = 10.0, nearest: int = 10) -> np.ndarray:
    """Return embeddings after a step down strength · Σ -‖w - w'‖² over each w and its nearest w' (Yu et al. 2020,
    "Federated learning with only positive labels", section 4), scaled to length 1.

    Arguments:
    - `embeddings`: embeddings of all users, of length 1: float (users, size).
    - `rate`: learning rate of the step.
    - `strength`: the paper's λ (default 10).
    - `nearest`: other users that each is moved away from (default 10; all, if there are fewer). With all, a step only
      takes the mean off, and embeddings may meet two by two: choose fewer where there are few users.

    Raises ShapeError for something else than a matrix of finite values.
    """
    w = np.asarray(embeddings, np.float64)
    if w.ndim != 2 or not np.isfinite(w).all():
        raise ShapeError(f"Class embeddings are a finite matrix (users, size), got shape {w.shape}.")
    users, count = len(w), min(nearest, len(w) - 1)
    if count < 1:
        return unit(w).astype(np.float32)
    squares = np.square(w).sum(1)
    distances = squares[:, None] + squares - 2 * w @ w.T
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :count]
    pairs = np.zeros((users, users))
    np.put_along_axis(pairs, near, 1.0, axis=1)
    pairs += pairs.T  # d(w, w')² depends on both
    gradient = -2 * (pairs.sum(1, keepdims=True) * w - pairs @ w)
    return unit(w - rate * strength * gradient).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale the rows of `vectors` (..., size) to length 1; rows of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def scores(outputs: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return cosines from -1 to 1, float (n, users), of a network's outputs (n, size) and users' vectors (users,
    size)."""
    return unit(np.asarray(outputs, np.float64)) @ unit(np.asarray(np.atleast_2d(vectors), np.float64)).T


def warm_up_threshold(warm_up: np.ndarray, true_positive_rate: float = 0.9) -> float:
    """Return the score at which a user's own recordings are accepted with about the wanted rate: of n warm-up scores,
    the ⌊n (1 - rate)⌋-th in ascending order, counted from 0 (Hosseini et al. 2021, section 3.3).

    Arguments:
    - `warm_up`: scores of the user's own recordings after training (n,).
    - `true_positive_rate`: above 0 and up to 1 (default 0.9).

    Raises DataError without scores, and for another rate.
    """
    if not 0 < true_positive_rate <= 1:
        raise DataError(f"A true positive rate lies above 0 and is at most 1, unlike {true_positive_rate}.")
    if not np.size(warm_up) or not np.isfinite(warm_up).all():
        raise DataError("A threshold needs at least one finite score of the user's own recordings.")
    ascending = np.sort(np.ravel(warm_up))
    return float(ascending[floor(len(ascending) * (1 - true_positive_rate) + 1e-9)])


_STREAM = 41  # separates this random stream from others of the same seed


@dataclass(frozen=True, kw_only=True)
class VerificationStrategy(FedAdam):
    """Base of the strategies, which change shared weights by FedAdam. A user's *vector* is what the network's outputs
    for the user's own recordings turn to; the score of a recording is the cosine between outputs and vector.

    Arguments: those of FedAdam, with a rate of 0.005 and a tau of 1e-5, since the mean change of one update is the
    gradient itself, often small, and
    - `size`: number of values of a vector, the units of the network's last layer (default 128).

    Class attribute `loss`: of a user's recordings, whose targets are the user's vector.
    """

    loss: ClassVar[Loss]
    rate: float = 0.005
    tau: float = 1e-5
    size: int = 128

    @abstractmethod
    def vector(self, user: int, seed: int) -> np.ndarray:
        """Draw the vector of a user for a simulation, float32 (size,), from the user's number and a seed."""

    def targets(self, client, labels, own, seed):
        vector = own if own.any() else self.vector(client, seed)
        return np.tile(vector, (len(labels), 1))


@dataclass(frozen=True, kw_only=True)
class FedUV(VerificationStrategy):
    """A secret codeword for each user (Hosseini et al. 2021, "Federated learning of user verification models without
    sharing embeddings").

    Arguments: those of VerificationStrategy, and
    - `size`: 127 (default), 255 or 511 with `bch`, else any.
    - `bch`: codewords of a BCH code of the user's number and secret bits (default True), or random ones.

    Raises DataError for another size.
    """

    loss = CodewordHinge()
    size: int = 127
    bch: bool = True

    def __post_init__(self) -> None:
        if self.bch:
            code_of(self.size)

    def vector(self, user, seed):
        rng = np.random.default_rng([seed, _STREAM, user])
        if not self.bch:
            return random_codeword(self.size, rng)
        code = code_of(self.size)
        return code.codeword(user_number(user, seed), int(rng.integers(1 << code.secret_bits)))


@dataclass(frozen=True, kw_only=True)
class FixedVectors(VerificationStrategy):
    """A random direction for each user, which stays: FedAwS without learned embeddings.

    Arguments: those of VerificationStrategy.
    """

    loss = PositiveHinge()

    def vector(self, user, seed):
        return unit(np.random.default_rng([seed, _STREAM, user]).standard_normal(self.size)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class PositivesAlone(FixedVectors):
    """A learned embedding for each user, which nothing keeps apart from others': what goes wrong without the server.

    Arguments: those of VerificationStrategy, and
    - `vector_rate`: learning rate of the embeddings, for a step down the gradient of the loss (default 0.1).
    """

    vector_rate: float = 0.1

    @property
    def own_size(self) -> int:
        return self.size

    def moved(self, own, outputs):
        assert isinstance(self.loss, PositiveHinge)
        g = unit(np.asarray(outputs, np.float64))
        missing = np.maximum(0, self.loss.margin - g @ own)
        return unit(own + self.vector_rate * 2 * (missing[:, None] * g).mean(0)).astype(np.float32)

    def arranged(self, own):
        return unit(own)


@dataclass(frozen=True, kw_only=True)
class FedAwS(PositivesAlone):
    """A learned embedding for each user, which the server moves apart (Yu et al. 2020, "Federated learning with only
    positive labels").

    Arguments: those of PositivesAlone, and
    - `spread_rate`: learning rate of `spread` (default 0.01). With large rates embeddings jump from round to round, and
      the network learns targets that shake: lower it together with `vector_rate`.
    - `strength`, `nearest`: arguments of `spread` (default 10 and 10, as published).
    """

    spread_rate: float = 0.01
    strength: float = 10.0
    nearest: int = 10

    def arranged(self, own):
        return spread(unit(own), self.spread_rate, self.strength, self.nearest)


@dataclass(frozen=True, kw_only=True)
class SoftmaxVerification(VerificationStrategy):
    """Softmax cross-entropy over all users: an output for each of them, whose weights everybody shares and sees. It is
    the baseline without secrets.

    Arguments: those of VerificationStrategy, of which `size` is the number of users.
    """

    loss = CategoricalCrossentropy()

    def vector(self, user, seed):
        return (np.arange(self.size) == user).astype(np.float32)


VERIFICATION_STRATEGIES: dict[str, type[VerificationStrategy]] = {
    "feduv": FedUV, "random": FedUV, "fedaws": FedAwS, "positives": PositivesAlone, "fixed": FixedVectors,
    "softmax": SoftmaxVerification,
}  # fmt: skip


def make_verification_strategy(name: str, **settings: Any) -> VerificationStrategy:
    """Return a strategy by name.

    Arguments:
    - `name`: `"feduv"` (BCH codewords), `"random"` (random codewords), `"fedaws"`, `"positives"`, `"fixed"` or
      `"softmax"`.
    - `settings`: its arguments; those that are None have their defaults.

    Raises PlanError for another name or an argument that the strategy doesn't have, DataError for a size that no BCH
    code has.
    """
    if name not in VERIFICATION_STRATEGIES:
        raise PlanError(f"'{name}' verifies no users: choose {', '.join(VERIFICATION_STRATEGIES)}.")
    given = {setting: value for setting, value in settings.items() if value is not None}
    kind = VERIFICATION_STRATEGIES[name]
    if unknown := [setting for setting in given if setting not in kind.__dataclass_fields__]:
        raise PlanError(f"{name} has no {unknown[0]}: leave it out.")
    return FedUV(**given, bch=False) if name == "random" else kind(**given)


LEAST_RECORDINGS = 2


@dataclass(frozen=True, eq=False)
class User:
    """A user's vector and threshold. Both are secrets of the user: whoever has the vector can look for inputs that are
    accepted.

    Arguments:
    - `vector`: codeword or embedding that outputs are compared with, float32 (size,).
    - `threshold`: least cosine at which a recording is accepted.
    """

    vector: np.ndarray
    threshold: float

    @staticmethod
    def enrol(outputs: np.ndarray, vector: np.ndarray | None = None, true_positive_rate: float = 0.9) -> User:
        """Return the user whose recordings gave these outputs.

        Arguments:
        - `outputs`: outputs of the network for the user's own recordings, which it wasn't trained with (n, size).
        - `vector`: vector of a user who took part in training (default None: the mean direction of the outputs).
        - `true_positive_rate`: share of the user's own recordings to accept (default 0.9).

        Raises DataError for fewer than 2 recordings. Without a vector, each recording is scored against the mean of the
        others, as a new recording will be.
        """
        if len(outputs) < LEAST_RECORDINGS:
            raise DataError(f"Enrolment needs at least {LEAST_RECORDINGS} recordings, got {len(outputs)}.")
        if vector is None:
            directions = unit(np.asarray(outputs, np.float64))
            vector = unit(directions.sum(0))
            own = np.sum(unit(directions.sum(0) - directions) * directions, axis=1)
        else:
            own = scores(outputs, vector)[:, 0]
        return User(np.asarray(vector, np.float32), warm_up_threshold(own, true_positive_rate))

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """Return the score of each recording, (n,), of a network's outputs (n, size).

        Raises FormatError for outputs of another size.
        """
        if outputs.shape[1:] != self.vector.shape:
            raise FormatError(
                f"The network gives {outputs.shape[1]} values, but this user was enrolled with {len(self.vector)}. Use "
                "the network of the enrolment, or enrol again."
            )
        return scores(outputs, self.vector)[:, 0]

    def accepts(self, outputs: np.ndarray) -> np.ndarray:
        """Return True for each recording that is accepted, (n,). Arguments and errors as `scores`."""
        return self.scores(outputs) >= self.threshold

    def save(self, path: str | Path) -> None:
        """Write the file, which only its owner may read where the system has such permissions.

        Raises RunError if it can't be written.
        """
        arrays = {"vector": np.float32(self.vector), "threshold": np.array([self.threshold])}
        with atomic.replacing(path, 8 * len(self.vector)) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o600)
            file.write(safetensors.to_bytes(arrays, {"edgelearn": "user"}))

    @staticmethod
    def load(path: str | Path) -> User:
        """Read a file that `save` wrote. Raises FormatError for another or a damaged one."""
        arrays = safetensors.read_weights(path)
        vector, threshold = arrays.get("vector", np.empty(0)), arrays.get("threshold", np.empty(0))
        fits = vector.ndim == 1 and vector.size and vector.dtype == np.float32 and threshold.shape == (1,)
        if not fits or not np.isfinite(vector).all() or not -1 <= threshold[0] <= 1:
            raise FormatError(f"{path} holds no user: give a file that `edgelearn federated verify enrol` wrote.")
        return User(vector, float(threshold[0]))


FILTERS = (16, 32, 48, 64)
_GROUPS = 8


def speaker_network(input_shape: tuple[int, int, int] = (51, 40, 1), outputs: int = 127) -> Network:
    """A network of depthwise separable convolutions for verification of speakers, with 19,184 weights at 127 outputs.

    It has GroupNormalization: clients have recordings of one person each, whose batch statistics say nothing of others.
    The hidden layer has SiLU. Its inputs are pooled, at least 0 and much alike for all voices. With ReLU a third of its
    units are 0 for everybody, have no gradient and stay so; codewords need the rank of all of them.

    Arguments:
    - `input_shape`: (frames, bands, 1) of log-mel energies (default: 51 frames of 40 bands).
    - `outputs`: units of the last layer, "verification", which has no bias (default 127).
    """
    network = Network(f"speakers_{outputs}", input_shape)
    network.add("scale", Rescaling(0.25, 1.5))  # log-mel energies lie around -6 ± 4
    convolution = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}
    _unit(network, "conv", Conv2D(FILTERS[0], 5, 2, **convolution))
    for block, filters in enumerate(FILTERS[1:], start=1):
        _unit(network, f"block{block}_depthwise", DepthwiseConv2D(3, 2, **convolution))
        _unit(network, f"block{block}_pointwise", Conv2D(filters, 1, **convolution))
    network.add("pool", GlobalAveragePooling2D())
    network.add("hidden", Dense(FILTERS[-1]))
    network.add("hidden_silu", SiLU())
    network.add("verification", Dense(outputs, use_bias=False))
    return network


def _unit(network: Network, name: str, op: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_norm", GroupNormalization(groups=_GROUPS))
    network.add(f"{name}_relu", ReLU())
