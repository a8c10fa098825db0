"""Which replies of a round the server believes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt

import numpy as np

from edgelearn.errors import FormatError

from .compressor import Decoder, Shapes
from .grid import Outcome
from .messages import Reply, split_own

MOST_EXAMPLES = 10  # times the round's median that a client's number of examples counts for
_EXAMPLES = 1_000_000_000  # no client has more


@dataclass(frozen=True)
class Update:
    """A change of the weights that a client proposes.

    Arguments:
    - `client`: its number.
    - `arrays`: the change, float32.
    - `examples`: number of examples that it says it trained with, at most MOST_EXAMPLES times the round's median.
    - `metrics`: numbers by name.
    - `own`: values of the client's own (default: none).
    """

    client: int
    arrays: Sequence[np.ndarray] = field(repr=False)
    examples: int
    metrics: Mapping[str, float]
    own: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32), repr=False)

    @property
    def norm(self) -> float:
        """Euclidean length of the whole change."""
        return sqrt(sum(float(np.vdot(array, array)) for array in map(np.float64, self.arrays)))


@dataclass
class Lengths:
    """How long a change may be. Changes get short once most clients know their examples; one that has something left to
    learn is long beside them, and is believed as long as earlier rounds had such changes.

    Arguments:
    - `largest`: times the largest median length of a round so far that a change may have; None: any.
    - `median`: the largest so far (default 0: there was no round).
    """

    largest: float | None
    median: float = 0.0

    def too_long(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Return why some of a round's changes are too long, by client.

        Arguments:
        - `norms`: their lengths, by client.
        """
        if self.largest is None or not norms:
            return {}
        self.median = max(self.median, _median(norms.values()))
        reason = f"more than {self.largest:g} times the longest median of a round"
        limit = self.largest * self.median
        return {c: f"its change is {norm:.3g} long, {reason}" for c, norm in norms.items() if norm > limit}


def screen(
    outcomes: Mapping[int, Outcome], number: int, shapes: Shapes, compressor: Decoder, lengths: Lengths,
    own_size: int = 0,
) -> tuple[list[Update], dict[int, str]]:  # fmt: skip
    """Return (updates to aggregate, by ascending client; why the others are left out, by client).

    Arguments:
    - `outcomes`: of the round's clients.
    - `number`: of the round.
    - `shapes`: of the arrays that travel.
    - `compressor`: of the replies.
    - `lengths`: that changes may have; they learn from the round's.
    - `own_size`: number of values of a client's own, which follow the change (default 0).
    """
    updates, left_out = [], {}
    for client, outcome in sorted(outcomes.items()):
        try:
            updates.append(_update(outcome, number, client, shapes, compressor, own_size))
        except FormatError as error:
            left_out[client] = str(error)
    left_out |= lengths.too_long({update.client: update.norm for update in updates})
    return _bounded([update for update in updates if update.client not in left_out]), left_out


def _bounded(updates: list[Update]) -> list[Update]:
    """The server can't count a client's examples, so none counts as much more than the others."""
    if not updates:
        return []
    most = MOST_EXAMPLES * int(_median(update.examples for update in updates))
    return [replace(update, examples=min(update.examples, most)) for update in updates]


def _median(values: Iterable[float]) -> float:
    """The lower of the two in the middle, if there are two."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def _update(
    outcome: Outcome, number: int, client: int, shapes: Shapes, compressor: Decoder, own_size: int
) -> Update:  # fmt: skip
    """Raises FormatError, with the reason, for what can't be aggregated."""
    if isinstance(outcome, str):
        raise FormatError(outcome)
    reply = Reply.from_bytes(outcome)
    if (reply.round, reply.client) != (number, client):
        raise FormatError(f"the reply is for round {reply.round} of client {reply.client}")
    if reply.problem:
        raise FormatError(reply.problem)
    if not 1 <= reply.examples <= _EXAMPLES:
        raise FormatError(f"it trained with {reply.examples} examples")
    payload, own = split_own(reply.payload, own_size)
    arrays = compressor.decode(payload, shapes)
    if not all(np.isfinite(array).all() for array in (*arrays, own)):
        raise FormatError("its change holds a NaN or an infinity")
    if bad := [name for name, value in reply.metrics.items() if not isfinite(value)]:
        raise FormatError(f"its {bad[0]} is {reply.metrics[bad[0]]}")
    return Update(client, arrays, reply.examples, reply.metrics, own)
