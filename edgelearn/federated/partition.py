"""Partitions: which examples each client of a federation has, drawn from a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

_STREAM = 31  # separates this random stream from others of the same seed
_ATTEMPTS = 200  # drawings of a Dirichlet partition until every client has enough examples


@dataclass(frozen=True)
class Partition(ABC):
    """Base of the partitions.

    Arguments:
    - `clients`: number of clients.
    - `seed`: draws who gets what (default 0).

    Raises DataError if there is no client.
    """

    clients: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise DataError(f"A federation needs at least one client, not {self.clients}.")

    def divide(self, labels: np.ndarray, groups: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the examples of each client: sorted indices, of which no two clients share one.

        Arguments:
        - `labels`: int (n,).
        - `groups`: name of the group that each example belongs to, such as its speaker: (n,) (default none).

        Raises DataError if a client would have no example.
        """
        labels = np.asarray(labels)
        parts = [np.sort(part) for part in self._divide(labels, groups, np.random.default_rng([self.seed, _STREAM]))]
        if empty := [number for number, part in enumerate(parts) if not len(part)]:
            raise DataError(
                f"Client {empty[0]} would have none of the {len(labels)} examples. Take fewer clients than "
                f"{self.clients}, or another partition."
            )
        return parts

    @abstractmethod
    def _divide(self, labels: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """The examples of each client, in any order."""


@dataclass(frozen=True)
class IID(Partition):
    """Every client draws from the same distribution: examples are dealt at random, numbers differ by at most one.

    Arguments: those of Partition.
    """

    def _divide(self, labels, groups, rng):
        return np.array_split(rng.permutation(len(labels)), self.clients)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """The examples of each class are divided in proportions from a Dirichlet distribution (Hsu et al. 2019).

    Arguments: those of Partition, and
    - `alpha`: concentration (default 0.5); small: few classes a client; large: all clients alike.
    - `least`: examples that every client has; proportions are drawn until they do (default 10).
    """

    alpha: float = 0.5
    least: int = 10

    def _divide(self, labels, groups, rng):
        if self.alpha <= 0:
            raise DataError(f"alpha of a Dirichlet partition lies above 0, unlike {self.alpha}. Usual is 0.5.")
        for _ in range(_ATTEMPTS if self.least * self.clients <= len(labels) else 0):
            parts: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
            for label in np.unique(labels):
                members = rng.permutation(np.flatnonzero(labels == label))
                shares = np.cumsum(rng.dirichlet(np.full(self.clients, self.alpha)))[:-1]
                for part, some in zip(parts, np.split(members, (shares * len(members)).astype(int)), strict=True):
                    part.append(some)
            joined = [np.concatenate(part) for part in parts]
            if min(map(len, joined)) >= self.least:
                return joined
        raise DataError(
            f"No drawing of {_ATTEMPTS} gave {self.clients} clients with {self.least} of {len(labels)} examples each. "
            f"Take fewer clients, a larger alpha than {self.alpha}, or a smaller least number."
        )


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Each client has examples of a few classes: client i of class i modulo the number of classes, and of others drawn
    at random. The examples of a class are divided evenly among its clients. With fewer clients than classes some
    examples belong to nobody.

    Arguments: those of Partition, and
    - `count`: classes of a client (default 1, as with user verification).
    """

    count: int = 1

    def _divide(self, labels, groups, rng):
        names = np.unique(labels)
        if not 1 <= self.count <= len(names):
            raise DataError(f"A client can have 1 to {len(names)} classes, not {self.count}.")
        held = []
        for client in range(self.clients):
            first = client % len(names)
            others = rng.choice(np.delete(np.arange(len(names)), first), self.count - 1, replace=False)
            held.append({first, *others.tolist()})
        parts: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for number, label in enumerate(names):
            holders = [client for client, classes in enumerate(held) if number in classes]
            members = rng.permutation(np.flatnonzero(labels == label))
            for client, some in zip(holders, np.array_split(members, max(1, len(holders))), strict=False):
                parts[client].append(some)
        return [np.concatenate(part) for part in parts]


@dataclass(frozen=True)
class ByGroup(Partition):
    """Each client has all examples of one or more groups, such as speakers or writers; groups are dealt at random.

    Arguments: those of Partition.
    """

    def _divide(self, labels, groups, rng):
        if groups is None:
            raise DataError("These examples belong to no groups, such as speakers. Take another partition.")
        names = np.unique(groups)
        if len(names) < self.clients:
            raise DataError(f"{len(names)} groups are too few for {self.clients} clients. Take fewer clients.")
        dealt = rng.permutation(names)
        return [np.flatnonzero(np.isin(groups, dealt[client :: self.clients])) for client in range(self.clients)]


def counts(parts: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Number of examples by client and class: int (clients, classes)."""
    return np.array([np.bincount(np.asarray(labels)[part], minlength=classes) for part in parts])
