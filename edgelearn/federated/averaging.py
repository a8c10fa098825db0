"""Averaged weights: a mean over rounds, which is steadier than the weights of the last one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import PlanError


class Average:
    """Exponential mean of the arrays of all rounds so far (Polyak and Juditsky 1992, "Acceleration of stochastic
    approximation by averaging"; on the server of a federation, Caldarola et al. 2022, "Improving generalization in
    federated learning by seeking flat minima").

    A round's share is `decay` times that of the round behind it, and all shares add up to 1, from the first round on:
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
