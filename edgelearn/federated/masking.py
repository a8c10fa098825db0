"""Secure aggregation, as a demonstration: masks that hide each client's change and cancel in the sum.

The idea is that of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
without what makes it practical and secure: here every pair's mask comes from a seed that the laboratory knows, where
clients would agree on keys, and a client that is missing makes the round's sum useless.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import FormatError

from .compression.arrays import check_size, count, flatten, split
from .compressor import Shapes

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
    total = np.zeros(count(shapes), np.uint32)
    for message in messages:
        check_size(message, 4 * count(shapes), f"{count(shapes):,} masked values")
        total = total + np.frombuffer(message, "<u4").astype(np.uint32)
    return split(total.view(np.int32) * STEP, shapes)
