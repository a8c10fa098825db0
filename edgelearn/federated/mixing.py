"""Mixing: changes of clients are averaged with each other before a strategy combines them, so that honest ones agree.

Robust strategies look for a majority. Where clients differ, each honest change lies far from the others, and a minority
pulls the median of so wide a cloud by a large part of its width. Means of several changes lie closer together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import PlanError

from .strategy import Arrays, check_bad, mean, number_of_bad, square_distances

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
