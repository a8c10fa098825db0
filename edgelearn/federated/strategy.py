"""Strategies: how the server combines the clients' updates, and what it makes of that.

The rules are those of Flower's classes of the same names, in float32; a test holds them against these.

Mixing averages clients' changes with each other before a strategy combines them. Robust strategies look for a majority.
Where clients differ, each honest change lies far from the others, and a minority pulls the median of so wide a cloud by
a large part of its width. Means of several changes lie closer together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, floor, sqrt
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.ops import Loss

Arrays = list[np.ndarray]
State = dict[str, Arrays]


@dataclass(frozen=True)
class Strategy(ABC):
    """Base of the strategies.

    Arguments:
    - `proximal`: μ of the term μ/2 ‖w − w_received‖² in each client's loss (default 0: none).
    - `decay`: factor of the server's steps from one round to the next, above 0 and at most 1 (default 1: none).

    Class attribute `loss`: of the clients' training (default None: cross-entropy).
    """

    loss: ClassVar[Loss | None] = None
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

    def targets(self, client: int, labels: np.ndarray, own: np.ndarray, seed: int) -> np.ndarray:
        """Return the targets of the examples that a client trains with, (n, ...) (default: their labels).

        Arguments:
        - `client`: number of the client.
        - `labels`: labels of the examples, (n,).
        - `own`: what the server sent of the client's own, (own_size,); zeros in its first round.
        - `seed`: seed of the clients.
        """
        return labels

    def moved(self, own: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return what a client's own values become in a round, float32 (own_size,).

        Arguments:
        - `own`: the values before the round.
        - `outputs`: outputs of the network for the client's examples, by the weights that the client received (n, ...).
        """
        return own

    @property
    def combines(self) -> bool:
        """True for a strategy that combines changes in a way of its own, not by their mean."""
        return type(self).combined is not Strategy.combined

    def combined(self, changes: Sequence[Arrays], examples: Sequence[int], length: float) -> Arrays:
        """Return one change made of the clients', float32 (default: their mean by number of examples).

        Arguments:
        - `changes`: each client's change, float32; each is read from the client's reply when it is asked for, so that a
          strategy that takes one after the other needs the memory of one.
        - `examples`: number of examples that each client says it trained with.
        - `length`: running median of the rounds' median norms of a change.
        """
        return mean(changes, examples)

    def arranged(self, own: np.ndarray) -> np.ndarray:
        """Return what clients have of their own after the server's part of a round.

        Arguments:
        - `own`: values of the clients that have been drawn so far, float32 (clients, own_size).
        """
        return own

    def fitted(self, momentum: float, batch_size: int, epochs: int, steps: int | None) -> Strategy:
        """Return the strategy for clients that train in this way (default: the same for all).

        Arguments:
        - `momentum`: of the clients' optimizer.
        - `batch_size`: examples of a client's update.
        - `epochs`: passes over a client's examples in a round.
        - `steps`: updates of every client in a round, in place of epochs; None: epochs.
        """
        return self

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
        - `mean`: the clients' changes, `combined` into one, float32.
        - `state`: state that `initial_state` or the round before left.
        - `number`: number of the round, from 1.
        """


@dataclass(frozen=True)
class FedAvg(Strategy):
    """The mean of the clients' changes (McMahan et al. 2017); with `proximal` it is FedProx (Li et al. 2020).

    Arguments: those of Strategy.
    """

    def step(self, mean, state, number):
        return mean, state


@dataclass(frozen=True)
class FedNova(FedAvg):
    """The mean of the clients' changes, each divided by the number of its updates (Wang et al. 2020, "Tackling the
    objective inconsistency problem in heterogeneous federated optimization", with momentum as in their section 4):
    clients with more examples make more updates in an epoch, and their data counts for no more than its share.

    Arguments: those of Strategy, and
    - `batch_size`: examples of a client's update; None: all clients make as many updates (default None).
    - `epochs`: passes over a client's examples in a round (default 1).
    - `momentum`: of the clients' optimizer, which begins anew in each round (default 0).
    """

    batch_size: int | None = None
    epochs: int = 1
    momentum: float = 0.0

    def fitted(self, momentum, batch_size, epochs, steps):
        return replace(self, momentum=momentum, batch_size=None if steps else batch_size, epochs=epochs)

    def way(self, examples: int) -> float:
        """Sum of the weights of a client's gradients in its change: its updates, without momentum."""
        updates = 1 if self.batch_size is None else self.epochs * ceil(examples / self.batch_size)
        rest = 1 - self.momentum
        return (updates - self.momentum * (1 - self.momentum**updates) / rest) / rest

    def combined(self, changes, examples, length):
        ways = [self.way(count) for count in examples]
        effective = sum(count * way for count, way in zip(examples, ways, strict=True)) / sum(examples)
        return mean(changes, examples, [effective / way for way in ways])


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


@dataclass(frozen=True)
class FedMedian(FedAvg):
    """The median of each value over the clients (Yin et al. 2018, "Byzantine-robust distributed learning"). It and the
    strategies below withstand a minority of bad clients; each client counts the same, whatever its number of examples.

    Arguments: those of Strategy.
    """

    def combined(self, changes, examples, length):
        return [np.median(values, 0).astype(np.float32) for values in map(np.stack, zip(*changes, strict=True))]


@dataclass(frozen=True)
class _Tolerant(FedAvg):
    """Base of strategies that are told how many bad clients they must withstand.

    Arguments: those of Strategy, and
    - `bad`: largest share of bad clients, at least 0 and below 0.5 (default 0.3).

    Raises PlanError for another share.
    """

    bad: float = 0.3

    def __post_init__(self) -> None:
        check_bad(self.bad)

    def number(self, clients: int) -> int:
        """Number of bad clients of so many, fewer than half."""
        return number_of_bad(self.bad, clients)


@dataclass(frozen=True)
class FedTrimmedAvg(_Tolerant):
    """The mean of each value over the clients without the largest and the smallest ones, as many at each end as clients
    may be bad (Yin et al. 2018).

    Arguments: those of Strategy, and
    - `bad`: largest share of bad clients, at least 0 and below 0.5 (default 0.3).
    """

    def combined(self, changes, examples, length):
        kept = slice(self.number(len(changes)), len(changes) - self.number(len(changes)))
        stacks = map(np.stack, zip(*changes, strict=True))
        return [np.sort(values, 0)[kept].mean(0, np.float64).astype(np.float32) for values in stacks]


@dataclass(frozen=True)
class MultiKrum(_Tolerant):
    """The mean of the changes that lie nearest to others (Blanchard et al. 2017, "Machine learning with adversaries"):
    of all but the bad clients.

    Arguments: those of Strategy, and
    - `bad`: largest share of bad clients, at least 0 and below 0.5 (default 0.3).
    """

    def kept(self, clients: int) -> int:
        """Number of changes that are kept."""
        return clients - self.number(clients)

    def combined(self, changes, examples, length):
        distances, count = np.sort(square_distances(changes), 1), len(changes)
        scores = distances[:, 1 : max(2, count - self.number(count) - 1)].sum(1)
        best = sorted(np.argsort(scores, kind="stable")[: self.kept(count)])
        return mean([changes[place] for place in best], [1] * len(best))


@dataclass(frozen=True)
class Krum(MultiKrum):
    """The change that lies nearest to others (Blanchard et al. 2017).

    Arguments: those of Strategy, and
    - `bad`: largest share of bad clients, at least 0 and below 0.5 (default 0.3).
    """

    def kept(self, clients):
        return 1


@dataclass(frozen=True)
class NormClipping(FedAvg):
    """The mean of the changes, those that are longer than the rounds' running median scaled down to it (Sun et al.
    2019, "Can you really backdoor federated learning?"); no client counts for more examples than the median one.

    Arguments: those of Strategy.
    """

    def combined(self, changes, examples, length):
        factors = [min(1.0, length / max(norm(each), 1e-300)) for each in changes]
        most = sorted(examples)[(len(examples) - 1) // 2]
        return mean(changes, [min(count, most) for count in examples], factors)


STRATEGIES: dict[str, type[Strategy]] = {
    "fedavg": FedAvg, "fedprox": FedAvg, "fednova": FedNova, "fedavgm": FedAvgM, "fedadam": FedAdam, "fedyogi": FedYogi,
    "fedmedian": FedMedian, "fedtrimmedavg": FedTrimmedAvg, "krum": Krum, "multikrum": MultiKrum,
    "normclipping": NormClipping,
}  # fmt: skip


def mean(changes: Sequence[Arrays], examples: Sequence[int], factors: Sequence[float] | None = None) -> Arrays:
    """Return the mean of changes by number of examples, float32; it is summed in float64, in the order of the clients,
    and reads one change at a time.

    Arguments:
    - `changes`: change of each client, float32.
    - `examples`: number of examples of each client.
    - `factors`: of each change (default: 1).
    """
    sums, total = [np.zeros(array.shape, np.float64) for array in changes[0]], sum(examples)
    for place, (arrays, count) in enumerate(zip(changes, examples, strict=True)):
        for sum_, array in zip(sums, arrays, strict=True):
            sum_ += np.float64(count / total) * (array if factors is None else np.float32(factors[place]) * array)
    return [sum_.astype(np.float32) for sum_ in sums]


def check_bad(share: float) -> None:
    """Raises PlanError for a share of bad clients that nothing withstands."""
    if not 0 <= share < 0.5:
        raise PlanError(f"Strategies withstand a share of bad clients of at least 0 and below 0.5, not {share}.")


def number_of_bad(share: float, clients: int) -> int:
    """Return how many of so many clients are bad at a largest share of `share`; fewer than half."""
    return min(floor(share * clients + 1e-9), (clients - 1) // 2)


def square_distances(changes: Sequence[Arrays]) -> np.ndarray:
    """Return the square of the Euclidean distance between each two changes, float64 (clients, clients)."""
    flat = np.stack([np.concatenate([np.float64(array).ravel() for array in each]) for each in changes])
    squares = (flat**2).sum(1)
    return squares[:, None] + squares - 2 * flat @ flat.T


def norm(arrays: Sequence[np.ndarray]) -> float:
    """Return the Euclidean length of all values together."""
    return sqrt(sum(float(np.vdot(array, array)) for array in map(np.float64, arrays)))


def make_strategy(
    name: str, proximal: float, rate: float | None = None, decay: float = 1.0, bad: float | None = None
) -> Strategy:
    """Return a strategy by name.

    Arguments:
    - `name`: a key of STRATEGIES.
    - `proximal`: μ of "fedprox"; the others have no proximal term.
    - `rate`: the server's learning rate (default None: the strategy's).
    - `decay`: factor of the server's steps from one round to the next (default 1).
    - `bad`: largest share of bad clients (default None: the strategy's).

    Raises PlanError for an unknown name, and for a rate or a share where the strategy has none.
    """
    if name not in STRATEGIES:
        raise PlanError(f"'{name}' is no strategy: choose {', '.join(STRATEGIES)}.")
    known = {each.name for each in fields(STRATEGIES[name])}
    settings = {"decay": decay} | ({"proximal": proximal} if name == "fedprox" else {})
    if rate is not None and "rate" not in known:
        raise PlanError(f"{name} has no learning rate of the server: leave it out, or choose fedavgm.")
    if bad is not None and "bad" not in known:
        raise PlanError(f"{name} isn't told a share of bad clients: leave it out, or choose multikrum.")
    settings |= {field: value for field, value in (("rate", rate), ("bad", bad)) if value is not None}
    return STRATEGIES[name](**settings)


def takes_bad(name: str) -> bool:
    """True for the name of a strategy that is told a share of bad clients."""
    return any(each.name == "bad" for each in fields(STRATEGIES[name]))


class Average:
    """Exponential mean of the arrays of all rounds so far (Polyak and Juditsky 1992, "Acceleration of stochastic
    approximation by averaging"; on the server of a federation, Caldarola et al. 2022, "Improving generalization in
    federated learning by seeking flat minima").

    A round's share is `decay` times that of the round after it, and all shares add up to 1, from the first round on:
    the arrays from before training have none.

    Arguments:
    - `decay`: above 0 and below 1. About 1 / (1 - decay) rounds matter.

    Attribute `arrays`: the mean, float32; empty before the first round.

    Raises PlanError for another decay.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise PlanError(f"The decay of an average lies above 0 and below 1, unlike {decay}: 0.99 is usual.")
        self.decay = decay
        self.arrays: list[np.ndarray] = []

    def add(self, arrays: Sequence[np.ndarray], number: int) -> None:
        """Take in the arrays of round `number` (from 1). They are added up in float64, and kept as float32."""
        if number == 1:
            self.arrays = [np.array(array, np.float32) for array in arrays]
            return
        share = (1 - self.decay) / (1 - self.decay**number)
        self.arrays = [
            (mean + share * (np.float64(array) - mean)).astype(np.float32)
            for mean, array in zip(self.arrays, arrays, strict=True)
        ]


_BUCKETS = 41  # separates this random stream from others of the same seed


class Mixing(ABC):
    """Base of what is done with the clients' changes before a strategy combines them."""

    @abstractmethod
    def mixed(self, changes: Sequence[Arrays], number: int) -> list[Arrays]:
        """Return mixed changes, float32, each of which counts the same.

        Arguments:
        - `changes`: each client's change, float32, by ascending client.
        - `number`: number of the round, from 1.
        """


@dataclass(frozen=True)
class Nearest(Mixing):
    """Each change becomes the mean of those nearest to it, itself among them, as many as clients are honest (Allouah et
    al. 2023, "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity").

    Arguments:
    - `bad`: largest share of bad clients, at least 0 and below 0.5 (default 0.3).

    Raises PlanError for another share.
    """

    bad: float = 0.3

    def __post_init__(self) -> None:
        check_bad(self.bad)

    def mixed(self, changes, number):
        kept = len(changes) - number_of_bad(self.bad, len(changes))
        order = np.argsort(square_distances(changes), 1, kind="stable")[:, :kept]
        return [mean([changes[place] for place in sorted(row)], [1] * kept) for row in order]


@dataclass(frozen=True)
class Buckets(Mixing):
    """Clients are dealt to buckets at random, anew in each round, and the changes become the means of the buckets
    (Karimireddy et al. 2022, "Byzantine-robust learning on heterogeneous datasets via bucketing"). One bad client
    spoils its bucket: fewer than half of the buckets may be spoilt.

    Arguments:
    - `size`: clients of a bucket, at least 1; the last ones may have fewer (default 2).
    - `seed`: draws who shares a bucket (default 0).

    Raises PlanError for another size.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise PlanError(f"A bucket has at least one client, not {self.size}.")

    def mixed(self, changes, number):
        order = np.random.default_rng([self.seed, _BUCKETS, number]).permutation(len(changes))
        buckets = [sorted(order[at : at + self.size]) for at in range(0, len(changes), self.size)]
        return [mean([changes[place] for place in bucket], [1] * len(bucket)) for bucket in buckets]


MIXINGS = ("none", "nearest", "buckets")


def make_mixing(name: str, bad: float | None = None, seed: int = 0) -> Mixing | None:
    """Return a mixing by name, or None for "none".

    Arguments:
    - `name`: one of MIXINGS.
    - `bad`: largest share of bad clients, of "nearest" (default None: 0.3).
    - `seed`: of "buckets" (default 0).

    Raises PlanError for an unknown name.
    """
    if name not in MIXINGS:
        raise PlanError(f"'{name}' is no mixing: choose {', '.join(MIXINGS)}.")
    if name == "nearest":
        return Nearest() if bad is None else Nearest(bad)
    return Buckets(seed=seed) if name == "buckets" else None
