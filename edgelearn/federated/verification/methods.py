"""Methods of user verification: the vector that a network's outputs are trained to agree with, for each user."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.ops import CategoricalCrossentropy, CodewordHinge, Loss, PositiveHinge

from ..codewords import code_of, random_codeword, user_number
from .spreading import spread, unit

_STREAM = 41  # separates this random stream from others of the same seed


@dataclass(frozen=True)
class Method(ABC):
    """Base of the methods. A user's *vector* is what the network's outputs for the user's own recordings turn to; the
    score of a recording is the cosine between outputs and vector.

    Arguments:
    - `size`: of the vectors, the units of the network's last layer.
    """

    size: int
    shares_vectors: ClassVar[bool] = False  # the server sees them

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss of a user's recordings, whose targets are the user's vector."""

    @abstractmethod
    def vector(self, user: int, seed: int) -> np.ndarray:
        """Draw the vector of a user for a simulation, float32 (size,), from the user's number and a seed."""

    def moved(self, vector: np.ndarray, outputs: np.ndarray, rate: float, steps: int) -> np.ndarray:
        """Return the user's vector after local training. `outputs` are those of the user's recordings (n, size)."""
        return vector

    def arranged(self, vectors: np.ndarray, rate: float) -> np.ndarray:
        """Return the users' vectors (users, size) after the server's part of a round."""
        return vectors


@dataclass(frozen=True)
class FedUV(Method):
    """A secret codeword for each user (Hosseini et al. 2021, "Federated learning of user verification models without
    sharing embeddings").

    Arguments:
    - `size`: 127, 255 or 511 with `bch`, else any.
    - `bch`: codewords of a BCH code of the user's number and secret bits (default True), or random ones.

    Raises DataError for another size.
    """

    bch: bool = True

    def __post_init__(self) -> None:
        if self.bch:
            code_of(self.size)

    @property
    def loss(self) -> Loss:
        return CodewordHinge()

    def vector(self, user: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng([seed, _STREAM, user])
        if not self.bch:
            return random_codeword(self.size, rng)
        code = code_of(self.size)
        return code.codeword(user_number(user, seed), int(rng.integers(1 << code.secret_bits)))


@dataclass(frozen=True)
class FixedVectors(Method):
    """A random direction for each user, which stays: FedAwS without learned embeddings.

    Arguments: those of Method.
    """

    @property
    def loss(self) -> Loss:
        return PositiveHinge()

    def vector(self, user: int, seed: int) -> np.ndarray:
        return unit(np.random.default_rng([seed, _STREAM, user]).standard_normal(self.size)).astype(np.float32)


@dataclass(frozen=True)
class PositivesAlone(FixedVectors):
    """A learned embedding for each user, which nothing keeps apart from others': what goes wrong without the server.

    Arguments: those of Method.
    """

    shares_vectors: ClassVar[bool] = True

    def moved(self, vector: np.ndarray, outputs: np.ndarray, rate: float, steps: int) -> np.ndarray:
        """Take `steps` steps of length `rate` down the gradient of the loss to the vector, which keeps length 1."""
        g = unit(np.asarray(outputs, np.float64))
        for _ in range(steps):
            missing = np.maximum(0, self.loss.margin - g @ vector)  # type: ignore[attr-defined]  a PositiveHinge
            vector = unit(vector + rate * 2 * (missing[:, None] * g).mean(0))
        return np.asarray(vector, np.float32)


@dataclass(frozen=True)
class FedAwS(PositivesAlone):
    """A learned embedding for each user, which the server moves apart (Yu et al. 2020, "Federated learning with only
    positive labels").

    Arguments:
    - `size`: of the embeddings.
    - `strength`, `nearest`: of `spread` (default 10 and 10, as published).
    """

    strength: float = 10.0
    nearest: int = 10

    def arranged(self, vectors: np.ndarray, rate: float) -> np.ndarray:
        return spread(vectors, rate, self.strength, self.nearest)


@dataclass(frozen=True)
class Softmax(Method):
    """Softmax cross-entropy over all users: an output for each of them, whose weights everybody shares and sees. It is
    the baseline without secrets.

    Arguments:
    - `size`: number of users.
    """

    @property
    def loss(self) -> Loss:
        return CategoricalCrossentropy()

    def vector(self, user: int, seed: int) -> np.ndarray:
        return (np.arange(self.size) == user).astype(np.float32)


_OTHERS = {"fixed": FixedVectors(128), "positives": PositivesAlone(128), "fedaws": FedAwS(128), "softmax": Softmax(128)}


def make_method(name: str, size: int | None = None) -> Method:
    """Return a method by name: `"feduv"` (BCH codewords), `"random"` (random codewords), `"fedaws"`, `"positives"`,
    `"fixed"` or `"softmax"`.

    Arguments:
    - `name`: one of these.
    - `size`: of the vectors (default None: 127 of codewords, else 128); of softmax, the number of users.

    Raises PlanError for another name, DataError for a size that no BCH code has.
    """
    if name in ("feduv", "random"):
        return FedUV(size or 127, bch=name == "feduv")
    if name not in _OTHERS:
        raise PlanError(f"'{name}' verifies no users: choose feduv, random, {', '.join(_OTHERS)}.")
    return _OTHERS[name] if size is None else replace(_OTHERS[name], size=size)
