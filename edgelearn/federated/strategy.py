"""Strategies: what the server makes of the mean of the clients' updates.

The rules are those of Flower's classes of the same names, in float32; a test holds them against these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from edgelearn.errors import PlanError

Arrays = list[np.ndarray]
State = dict[str, Arrays]


@dataclass(frozen=True)
class Strategy(ABC):
    """Base of the strategies.

    Arguments:
    - `proximal`: μ of the term μ/2 ‖w − w_received‖² in each client's loss (default 0: none).
    - `decay`: factor of the server's steps from one round to the next, above 0 and at most 1 (default 1: none).
    """

    proximal: float = 0.0
    decay: float = 1.0

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the server's state, an array for each trained parameter."""
        return ()

    @property
    def own_size(self) -> int:
        """Number of values that each client has of its own, which travel between it and the server (default 0)."""
        return 0

    def arranged(self, own: np.ndarray) -> np.ndarray:
        """Return what clients have of their own after the server's part of a round.

        Arguments:
        - `own`: of the clients that have been drawn so far, float32 (clients, own_size).
        """
        return own

    def scale(self, number: int) -> float:
        """Factor of the step of round `number` (from 1)."""
        return self.decay ** (number - 1)

    def initial_state(self, shapes: Sequence[tuple[int, ...]]) -> State:
        """The state before the first round: zeros."""
        return {slot: [np.zeros(shape, np.float32) for shape in shapes] for slot in self.slots}

    @abstractmethod
    def step(self, mean: Arrays, state: State, number: int) -> tuple[Arrays, State]:
        """Return (change of the weights, new state). The change is then multiplied by `scale(number)`.

        Arguments:
        - `mean`: mean of the clients' changes, by number of examples, float32.
        - `state`: as `initial_state` or the round before left it.
        - `number`: of the round, from 1.
        """


@dataclass(frozen=True)
class FedAvg(Strategy):
    """The mean of the clients' changes (McMahan et al. 2017); with `proximal` it is FedProx (Li et al. 2020).

    Arguments: those of Strategy.
    """

    def step(self, mean, state, number):
        return mean, state


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """Momentum on the server (Hsu et al. 2019): v = momentum v + mean, w += rate v.

    Arguments: those of Strategy, and
    - `rate`: the server's learning rate (default 1).
    - `momentum`: default 0.9.
    """

    rate: float = 1.0
    momentum: float = 0.9

    @property
    def slots(self):
        return ("momentum",)

    def step(self, mean, state, number):
        v = [np.float32(self.momentum) * v + d for v, d in zip(state["momentum"], mean, strict=True)]
        return [np.float32(self.rate) * each for each in v], {"momentum": v}


@dataclass(frozen=True)
class _Adaptive(Strategy):
    """Base of FedAdam and FedYogi (Reddi et al. 2021): w += rate m / (√v + tau).

    Arguments: those of Strategy, and
    - `rate`: the server's learning rate (default 0.1).
    - `beta_1`, `beta_2`: decay of the averages of changes and of their squares (default 0.9 and 0.99).
    - `tau`: adaptivity (default 0.001).
    """

    rate: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    @property
    def slots(self):
        return ("first", "second")

    @abstractmethod
    def _second(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """The new average of squares."""

    def _correction(self, number: int) -> float:
        return 1.0

    def step(self, mean, state, number):
        beta, rate = np.float32(self.beta_1), np.float32(self.rate * self._correction(number))
        first = [beta * m + (1 - beta) * d for m, d in zip(state["first"], mean, strict=True)]
        second = [self._second(v, d * d) for v, d in zip(state["second"], mean, strict=True)]
        change = [rate * m / (np.sqrt(v) + np.float32(self.tau)) for m, v in zip(first, second, strict=True)]
        return change, {"first": first, "second": second}


@dataclass(frozen=True)
class FedAdam(_Adaptive):
    """Adam on the server (Reddi et al. 2021), with Flower's correction of the first rounds.

    Arguments: those of Strategy, and
    - `rate`: the server's learning rate (default 0.1).
    - `beta_1`, `beta_2`: decay of the averages of changes and of their squares (default 0.9 and 0.99).
    - `tau`: adaptivity (default 0.001).
    """

    def _second(self, v, square):
        beta = np.float32(self.beta_2)
        return beta * v + (1 - beta) * square

    def _correction(self, number):
        return sqrt(1 - self.beta_2 ** (number + 1)) / (1 - self.beta_1 ** (number + 1))


@dataclass(frozen=True)
class FedYogi(_Adaptive):
    """Yogi on the server (Reddi et al. 2021).

    Arguments: those of Strategy, and
    - `rate`: the server's learning rate (default 0.01).
    - `beta_1`, `beta_2`: decay of the averages of changes and of their squares (default 0.9 and 0.99).
    - `tau`: adaptivity (default 0.001).
    """

    rate: float = 0.01

    def _second(self, v, square):
        return v - np.float32(1 - self.beta_2) * square * np.sign(v - square)


STRATEGIES: dict[str, type[Strategy]] = {
    "fedavg": FedAvg, "fedprox": FedAvg, "fedavgm": FedAvgM, "fedadam": FedAdam, "fedyogi": FedYogi,
}  # fmt: skip


def make_strategy(name: str, proximal: float, rate: float | None = None, decay: float = 1.0) -> Strategy:
    """Return a strategy by name.

    Arguments:
    - `name`: a key of STRATEGIES.
    - `proximal`: μ of "fedprox"; the others have no proximal term.
    - `rate`: the server's learning rate (default None: the strategy's).
    - `decay`: factor of the server's steps from one round to the next (default 1).

    Raises PlanError for an unknown name, and for a rate where the strategy has none.
    """
    if name not in STRATEGIES:
        raise PlanError(f"'{name}' is no strategy: choose {', '.join(STRATEGIES)}.")
    kind = STRATEGIES[name]
    settings = {"decay": decay} | ({"proximal": proximal} if name == "fedprox" else {})
    if rate is not None:
        if kind is FedAvg:
            raise PlanError(f"{name} has no learning rate of the server: leave it out, or choose fedavgm.")
        settings["rate"] = rate
    return kind(**settings)
