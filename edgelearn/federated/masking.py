"""Secure aggregation, as a demonstration: masks that hide each client's change and cancel in the sum.

The idea is that of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
without what makes it practical and secure: here every pair's mask comes from a seed that the laboratory knows, where
clients would agree on keys, and a client that is missing makes the round's sum useless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import FormatError, RunError

from .compression.arrays import check_size, count, flatten, split
from .compressor import Shapes
from .screening import Update

STEP = 2.0**-20  # of the fixed-point numbers that are added up
_LIMIT = 2**31  # sums of 32 bits, in STEP
_MASKS = 37  # separates this random stream from others of the same seed


def mask(arrays: Sequence[np.ndarray], client: int, clients: Sequence[int], seed: int, number: int) -> bytes:
    """Return a client's masked message: 32 bits an entry, which by themselves are uniformly random.

    Arguments:
    - `arrays`: to be added up, rounded to multiples of 2^-20.
    - `client`, `clients`: numbers of this client and of all whose arrays are added up.
    - `seed`: draws the masks of each pair; `number`: of the round.

    Raises NonFiniteError for a NaN or infinity, FormatError for values whose sum might not fit.
    """
    flat = np.rint(flatten(arrays).astype(np.float64) / STEP)
    if np.abs(flat).max(initial=0) * len(clients) >= _LIMIT:
        raise FormatError(
            f"Masked values must lie below {STEP * _LIMIT / len(clients):g} for {len(clients)} clients; the largest is "
            f"{STEP * np.abs(flat).max():g}. Scale the change down."
        )
    total = flat.astype(np.int64).astype(np.uint32)
    for other in clients:
        if other != client:
            pair = np.random.default_rng([seed, _MASKS, number, min(client, other), max(client, other)])
            bits = pair.integers(0, 1 << 32, len(flat), np.uint32)
            total = total + bits if client < other else total - bits
    return total.astype("<u4").tobytes()


def sum_of_masked(messages: Sequence[bytes], shapes: Shapes) -> list[np.ndarray]:
    """Return the sum of all clients' arrays, float64, from the messages of all of them.

    Raises FormatError for a message of another size. If one is missing, the result is noise: count them before.
    """
    return _sum([_decoded(message, shapes) for message in messages])


@dataclass(frozen=True)
class Masks:
    """Both sides of masked rounds: clients hide their changes, and the server sees their mean alone, to which every
    client counts the same.

    Arguments:
    - `drawn`: returns the clients of a round by its number; everybody can compute them (`Settings.drawn`).
    - `seed`: draws the masks (default 0).
    """

    drawn: Callable[[int], Sequence[int]]
    seed: int = 0

    def hide(self, arrays: Sequence[np.ndarray], client: int, number: int) -> bytes:
        """Return a client's message in round `number`. Errors as `mask`."""
        return mask(arrays, client, self.drawn(number), self.seed, number)

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        """Return masked values as they came, uint32. Raises FormatError for bytes of another size."""
        return _decoded(data, shapes)

    def mean(self, updates: Sequence[Update], drawn: int, number: int) -> list[np.ndarray]:
        """Return the mean change, float32. Raises RunError if an update is missing: masks cancel in the sum of all."""
        if len(updates) != drawn:
            raise RunError(
                f"Round {number}: {drawn - len(updates)} of {drawn} clients are missing, so masks don't cancel. Resume "
                "the run when all are there, or train without masks."
            )
        return [(sum_ / drawn).astype(np.float32) for sum_ in _sum([update.arrays for update in updates])]

    def logs(self, rounds: int) -> dict[str, float]:
        """Figures for the log of a round: none."""
        return {}


def _decoded(data: bytes, shapes: Shapes) -> list[np.ndarray]:
    check_size(data, 4 * count(shapes), f"{count(shapes):,} masked values")
    return split(np.frombuffer(data, "<u4").astype(np.uint32), shapes)


def _sum(messages: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """The sum of masked arrays, modulo 2^32, as float64."""
    sums = [np.sum(arrays, axis=0, dtype=np.uint32) for arrays in zip(*messages, strict=True)]
    return [np.atleast_1d(array).view(np.int32).reshape(array.shape) * STEP for array in sums]
