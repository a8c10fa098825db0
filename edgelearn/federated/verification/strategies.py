"""Strategies of user verification: the vector that a network's outputs are trained to agree with, for each user."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.ops import CategoricalCrossentropy, CodewordHinge, Loss, PositiveHinge

from ..codewords import code_of, random_codeword, user_number
from ..strategy import FedAdam
from .spreading import spread, unit

_STREAM = 41  # separates this random stream from others of the same seed


@dataclass(frozen=True, kw_only=True)
class VerificationStrategy(FedAdam):
    """Base of the strategies, which change shared weights by FedAdam. A user's *vector* is what the network's outputs
    for the user's own recordings turn to; the score of a recording is the cosine between outputs and vector.

    Arguments: those of FedAdam, with a rate of 0.005 and a tau of 1e-5, since the mean change of one update is the
    gradient itself, often small, and
    - `size`: of the vectors, the units of the network's last layer (default 128).
    """

    rate: float = 0.005
    tau: float = 1e-5
    size: int = 128

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss of a user's recordings, whose targets are the user's vector."""

    @abstractmethod
    def vector(self, user: int, seed: int) -> np.ndarray:
        """Draw the vector of a user for a simulation, float32 (size,), from the user's number and a seed."""

    def moved(self, vector: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return the user's vector after a round.

        Arguments:
        - `vector`: the user's before the round, float32 (size,).
        - `outputs`: for the user's recordings of the round, by the weights that the user received (n, size).
        """
        return vector


@dataclass(frozen=True, kw_only=True)
class FedUV(VerificationStrategy):
    """A secret codeword for each user (Hosseini et al. 2021, "Federated learning of user verification models without
    sharing embeddings").

    Arguments: those of VerificationStrategy, and
    - `size`: 127 (default), 255 or 511 with `bch`, else any.
    - `bch`: codewords of a BCH code of the user's number and secret bits (default True), or random ones.

    Raises DataError for another size.
    """

    size: int = 127
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


@dataclass(frozen=True, kw_only=True)
class FixedVectors(VerificationStrategy):
    """A random direction for each user, which stays: FedAwS without learned embeddings.

    Arguments: those of VerificationStrategy.
    """

    @property
    def loss(self) -> Loss:
        return PositiveHinge()

    def vector(self, user: int, seed: int) -> np.ndarray:
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

    def moved(self, vector: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        g = unit(np.asarray(outputs, np.float64))
        missing = np.maximum(0, self.loss.margin - g @ vector)  # type: ignore[attr-defined]  a PositiveHinge
        return unit(vector + self.vector_rate * 2 * (missing[:, None] * g).mean(0)).astype(np.float32)

    def arranged(self, own: np.ndarray) -> np.ndarray:
        return unit(own)


@dataclass(frozen=True, kw_only=True)
class FedAwS(PositivesAlone):
    """A learned embedding for each user, which the server moves apart (Yu et al. 2020, "Federated learning with only
    positive labels").

    Arguments: those of PositivesAlone, and
    - `spread_rate`: learning rate of `spread` (default 0.01). With large rates embeddings jump from round to round, and
      the network learns targets that shake: lower it together with `vector_rate`.
    - `strength`, `nearest`: of `spread` (default 10 and 10, as published).
    """

    spread_rate: float = 0.01
    strength: float = 10.0
    nearest: int = 10

    def arranged(self, own: np.ndarray) -> np.ndarray:
        return spread(unit(own), self.spread_rate, self.strength, self.nearest)


@dataclass(frozen=True, kw_only=True)
class Softmax(VerificationStrategy):
    """Softmax cross-entropy over all users: an output for each of them, whose weights everybody shares and sees. It is
    the baseline without secrets.

    Arguments: those of VerificationStrategy, of which `size` is the number of users.
    """

    @property
    def loss(self) -> Loss:
        return CategoricalCrossentropy()

    def vector(self, user: int, seed: int) -> np.ndarray:
        return (np.arange(self.size) == user).astype(np.float32)


VERIFICATION_STRATEGIES: dict[str, type[VerificationStrategy]] = {
    "feduv": FedUV, "random": FedUV, "fedaws": FedAwS, "positives": PositivesAlone, "fixed": FixedVectors,
    "softmax": Softmax,
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
