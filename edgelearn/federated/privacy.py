"""Differential privacy of a federation: clipped changes, noise on their mean, and what that guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, inf, sqrt

import numpy as np

from edgelearn.errors import PlanError

from .screening import Update

_NOISE = 36  # separates this random stream from others of the same seed


@dataclass(frozen=True)
class Privacy:
    """Central differential privacy at the level of clients (McMahan et al. 2018, "Learning differentially private
    recurrent language models"): what the server publishes depends little on any one client's data.

    The server scales changes that are longer than `clip` down to it, adds them up, divides by the number of clients
    that were drawn, and adds noise of deviation `noise` · `clip` / that number. These are the rules of Flower's
    DifferentialPrivacyServerSideFixedClipping.

    Arguments:
    - `clip`: largest length of a client's change, above 0.
    - `noise`: multiplier of the noise, above 0 (1 is usual).
    - `delta`: probability with which the guarantee may fail, above 0 and below 1 (default 1e-5).
    - `seed`: draws the noise, so that runs can be repeated: a laboratory's choice, since whoever knows the seed knows
      the noise (default 0).

    Raises PlanError for values out of range.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.clip < inf and 0 < self.noise < inf and 0 < self.delta < 1):
            raise PlanError(
                f"Differential privacy needs clip and noise above 0 and delta between 0 and 1, got {self.clip}, "
                f"{self.noise} and {self.delta}."
            )

    def mean(self, updates: Sequence[Update], drawn: int, number: int) -> list[np.ndarray]:
        """Return the private mean of changes, float32; every client counts the same, whatever its number of examples.

        Arguments:
        - `updates`: of the clients that are aggregated.
        - `drawn`: number of clients that were asked: a missing one counts as a change of 0.
        - `number`: of the round.
        """
        sums = [np.zeros(array.shape, np.float64) for array in updates[0].arrays]
        for update in updates:
            factor = min(1.0, self.clip / max(update.norm, 1e-300))
            for total, array in zip(sums, update.arrays, strict=True):
                total += factor * array
        rng = np.random.default_rng([self.seed, _NOISE, number])
        deviation = self.noise * self.clip
        return [((total + deviation * rng.standard_normal(total.shape)) / drawn).astype(np.float32) for total in sums]

    def logs(self, rounds: int) -> dict[str, float]:
        """Figures for the log of a round."""
        return {"epsilon": self.epsilon(rounds)}

    def epsilon(self, rounds: int) -> float:
        """Return ε of (ε, δ) after so many rounds, as `gaussian_epsilon`. Drawing only some clients in a round protects
        more; that isn't counted."""
        return gaussian_epsilon(self.noise, rounds, self.delta)


def gaussian_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return the least ε for which `rounds` releases with Gaussian noise are (ε, δ)-differentially private, for data
    that differ by one client's whole contribution.

    It is exact: n releases with multiplier σ are one with σ / √n, and δ(ε) of one is known (Balle and Wang 2018,
    "Improving the Gaussian mechanism for differential privacy", theorem 8).

    Arguments:
    - `noise`: deviation of the noise divided by the largest contribution.
    - `rounds`: number of releases.
    - `delta`: as above.
    """
    if rounds < 1:
        return 0.0
    mu = sqrt(rounds) / noise
    low, high = 0.0, 1.0
    if gaussian_delta(mu, low) <= delta:
        return 0.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a release whose distance is `mu` deviations of the noise."""
    upper = _normal(mu / 2 - epsilon / mu)
    lower = _normal(-mu / 2 - epsilon / mu)
    return upper - exp(epsilon) * lower if lower > 0 else upper


def _normal(x: float) -> float:
    """The cumulative distribution of a standard normal variable."""
    return erfc(-x / sqrt(2)) / 2
