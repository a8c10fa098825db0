"""Privacy of clients: differential privacy by clipped changes and noise, and masks that cancel in the sum.

The masks are a demonstration of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine
learning", without what makes it practical and secure: here every pair's mask comes from a seed that the laboratory
knows, where clients would agree on keys, and a client that is missing makes the round's sum useless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erfc, exp, inf, sqrt

import numpy as np

from edgelearn.errors import FormatError, PlanError, RunError

from .compression import Shapes, check_size, count, flatten, split
from .strategy import Arrays, norm

_NOISE, _LOCAL = 36, 42  # separate these random streams from others of the same seed


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
    - `sampled`: (clients of a round, all clients): ε then counts that only some clients are drawn, as
      `sampled_epsilon` (default None: it doesn't, as `gaussian_epsilon`).

    Raises PlanError for values out of range.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    seed: int = 0
    sampled: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not (0 < self.clip < inf and 0 < self.noise < inf and 0 < self.delta < 1):
            raise PlanError(
                f"Differential privacy needs clip and noise above 0 and delta between 0 and 1, got {self.clip}, "
                f"{self.noise} and {self.delta}."
            )

    def mean(self, changes: Sequence[Arrays], drawn: int, number: int) -> Arrays:
        """Return the private mean of changes, float32; every client counts the same, whatever its number of examples.

        Arguments:
        - `changes`: the change of each client that is aggregated, float32.
        - `drawn`: number of clients that were asked: a missing one counts as a change of 0.
        - `number`: number of the round.
        """
        sums = [np.zeros(array.shape, np.float64) for array in changes[0]]
        for change in changes:
            factor = min(1.0, self.clip / max(norm(change), 1e-300))
            for total, array in zip(sums, change, strict=True):
                total += factor * array
        rng = np.random.default_rng([self.seed, _NOISE, number])
        deviation = self.noise * self.clip
        return [((total + deviation * rng.standard_normal(total.shape)) / drawn).astype(np.float32) for total in sums]

    def logs(self, rounds: int) -> dict[str, float]:
        """Figures for the log of a round."""
        return {"epsilon": self.epsilon(rounds)}

    def epsilon(self, rounds: int) -> float:
        """Return ε of (ε, δ) after so many rounds. Raises RunError if `sampled` needs a package that isn't there."""
        if self.sampled:
            return sampled_epsilon(self.noise, rounds, self.delta, *self.sampled)
        return gaussian_epsilon(self.noise, rounds, self.delta)


@dataclass(frozen=True)
class LocalPrivacy:
    """Local differential privacy: each client scales its change down to length `clip` and adds noise of deviation
    `noise` · `clip` itself, so that nobody, the server included, sees what it learned.

    Arguments:
    - `clip`: largest length of a change, above 0.
    - `noise`: multiplier of the noise, above 0. With n clients the deviation of the mean is √n smaller.
    - `delta`: probability with which the guarantee may fail (default 1e-5).
    - `seed`: draws the noise, so that runs can be repeated: a laboratory's choice (default 0).

    Raises PlanError for values out of range.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        Privacy(self.clip, self.noise, self.delta)

    def protect(self, arrays: Arrays, client: int, number: int) -> Arrays:
        """Return a client's change in round `number` with noise, float32."""
        factor, deviation = min(1.0, self.clip / max(norm(arrays), 1e-300)), self.noise * self.clip
        rng = np.random.default_rng([self.seed, _LOCAL, number, client])
        return [(factor * array + deviation * rng.standard_normal(array.shape)).astype(np.float32) for array in arrays]

    def epsilon(self, rounds: int) -> float:
        """Return ε of (ε, δ) for a client that took part in so many rounds: any data of its own in place of any other
        moves its clipped change by 2 `clip` at most."""
        return gaussian_epsilon(self.noise / 2, rounds, self.delta)


def sampled_epsilon(noise: float, rounds: int, delta: float, drawn: int, clients: int) -> float:
    """Return ε of rounds in each of which some clients are drawn without replacement, for data in which one client's
    are replaced by others: a bound by Rényi divergences (Wang, Balle and Kasiviswanathan 2019), by the package
    dp-accounting.

    Arguments:
    - `noise`: multiplier of the noise; a replaced client moves the sum of clipped changes by 2 clip, so the bound is of
      half of it.
    - `rounds`: number of releases.
    - `delta`: as above.
    - `drawn`: clients of a round.
    - `clients`: all clients.

    Raises RunError if dp-accounting isn't installed.
    """
    try:
        import dp_accounting  # pyright: ignore[reportMissingImports]
        from dp_accounting import rdp  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RunError(
            "An ε that counts the drawing of clients needs dp-accounting: pip install 'edgelearn[privacy]'. Without "
            "it, leave the accountant 'exact'."
        ) from None
    if rounds < 1:
        return 0.0
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(clients, drawn, dp_accounting.GaussianDpEvent(noise / 2))
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


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


STEP = 2.0**-20  # of the fixed-point numbers that are added up
_LIMIT = 2**31  # sums of 32 bits, in STEP
_MASKS = 37  # separates this random stream from others of the same seed


@dataclass(frozen=True)
class Masks:
    """Both sides of masked rounds: clients hide their changes, and the server sees their mean alone, to which every
    client counts the same.

    Arguments:
    - `drawn`: function from a round's number to its clients; everybody can compute them (`ServerSettings.drawn`).
    - `seed`: draws the masks of each pair of clients (default 0).
    """

    drawn: Callable[[int], Sequence[int]]
    seed: int = 0

    def hide(self, arrays: Arrays, client: int, number: int) -> bytes:
        """Return a client's message in a round: 32 bits an entry, which by themselves are uniformly random.

        Arguments:
        - `arrays`: to be added up, rounded to multiples of 2^-20.
        - `client`: number of the client.
        - `number`: number of the round.

        Raises NonFiniteError for a NaN or infinity, FormatError for values whose sum might not fit.
        """
        clients = self.drawn(number)
        total = self.whole(arrays, len(clients))
        for other in clients:
            if other != client:
                pair = np.random.default_rng([self.seed, _MASKS, number, min(client, other), max(client, other)])
                bits = pair.integers(0, 1 << 32, len(total), np.uint32)
                total = total + bits if client < other else total - bits
        return total.astype("<u4").tobytes()

    def whole(self, arrays: Arrays, clients: int) -> np.ndarray:
        """Return values as multiples of 2^-20 modulo 2^32, uint32 (n,), whose sum over so many clients fits."""
        flat = np.rint(flatten(arrays).astype(np.float64) / STEP)
        if np.abs(flat).max(initial=0) * clients >= _LIMIT:
            raise FormatError(
                f"Masked values must lie below {STEP * _LIMIT / clients:g} for {clients} clients; the largest is "
                f"{STEP * np.abs(flat).max():g}. Scale the change down."
            )
        return flat.astype(np.int64).astype(np.uint32)

    def decode(self, data: bytes, shapes: Shapes) -> Arrays:
        """Return masked values as they came, uint32. Raises FormatError for bytes of another size."""
        check_size(data, f"{count(shapes):,} masked values", 4 * count(shapes))
        return split(np.frombuffer(data, "<u4").astype(np.uint32), shapes)

    def mean(self, changes: Sequence[Arrays], drawn: int, number: int) -> Arrays:
        """Return the mean change, float32. Raises RunError if a change is missing: masks cancel in the sum of all."""
        if len(changes) != drawn:
            raise RunError(
                f"Round {number}: {drawn - len(changes)} of {drawn} clients are missing, so masks don't cancel. Resume "
                "the run when all are there, or train without masks."
            )
        return self.unmasked(changes, [np.zeros(array.shape, np.uint32) for array in changes[0]], drawn)

    def unmasked(self, changes: Sequence[Arrays], masks: Arrays, clients: int) -> Arrays:
        """Return the mean of masked changes, float32.

        Arguments:
        - `changes`: as they came, uint32.
        - `masks`: what is left of the masks in their sum, uint32.
        - `clients`: divides the sum.
        """
        sums = [np.zeros_like(array) - array for array in masks]  # modulo 2^32
        for change in changes:
            sums = [sum_ + array for sum_, array in zip(sums, change, strict=True)]
        totals = [np.atleast_1d(array).view(np.int32).reshape(array.shape) * STEP for array in sums]
        return [(total / clients).astype(np.float32) for total in totals]

    def logs(self, rounds: int) -> dict[str, float]:
        """Figures for the log of a round: none."""
        return {}
