"""Users: clients that train a network to agree with their own vector. Recordings and codewords never leave them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgelearn.errors import PlanError

from ..client import Clients
from .strategies import FedUV, VerificationStrategy


@dataclass
class Users(Clients):
    """Clients whose targets are a vector of their own: drawn by themselves, or sent by a server that arranges vectors.

    Arguments: those of Clients, and
    - `strategy`: of the server (default FedUV).

    Raises PlanError for masks where users send their vectors.
    """

    strategy: VerificationStrategy = field(default_factory=FedUV)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masks and self.own_size:
            raise PlanError("Masks hide nothing where users send their vectors: choose a strategy that doesn't.")

    @property
    def own_size(self) -> int:
        return self.strategy.own_size

    def targets(self, client, chosen, own):
        vector = own if own.any() else self.strategy.vector(client, self.seed)
        return np.tile(vector, (len(chosen), 1))

    def moved(self, x, targets):
        if not self.own_size:
            return super().moved(x, targets)
        return self.strategy.moved(targets[0], self.trainer.predict(x))
