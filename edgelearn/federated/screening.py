"""Which replies of a round the server believes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from textwrap import shorten

import numpy as np

from edgelearn.errors import FormatError

from .compression import Decoder, Shapes
from .messages import Outcome, Reply, split_own
from .strategy import norm

MOST_EXAMPLES = 10  # times the round's median that a client's number of examples counts for
_EXAMPLES = 1_000_000_000  # no client has more
_ROUNDS, _RUNNING = 50, 3  # whose median lengths are kept, and of a running median
_PROBLEM = 300  # characters of a client's reason that are kept


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
        return norm(self.arrays)


@dataclass
class Lengths:
    """Limit of the lengths of changes, from the median lengths of earlier rounds.

    The limit is `largest` times the longest running median over three rounds, of the last 50: a round in which most
    clients lie doesn't raise it, and it falls once changes have become short. Most clients know their examples in the
    end; one that has something left to learn is long beside them, and is believed as long as the last 50 rounds had
    such changes. Changes of length 0 don't count. Before there are three rounds the shortest median counts, in the
    first round its own.

    Arguments:
    - `largest`: times that length; None: no limit.
    - `medians`: of the last rounds with changes, the oldest first, each at most the limit at its time.
    """

    largest: float | None
    medians: Sequence[float] = field(default_factory=list)

    @property
    def running(self) -> float:
        """The running median over the last three rounds; 0 before there is a round."""
        return _median(self.medians[-_RUNNING:]) if self.medians else 0.0

    def too_long(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Return why some of a round's changes are too long, by client; then learn from them.

        Arguments:
        - `norms`: their lengths, by client.
        """
        if not (lengths := [length for length in norms.values() if length]):
            return {}
        median = _median(lengths)
        known = self.medians or [median]
        typical = max(_median(known[at : at + _RUNNING]) for at in range(max(1, len(known) - _RUNNING + 1)))
        limit = inf if self.largest is None else self.largest * typical
        self.medians = [*self.medians, min(median, limit)][-_ROUNDS:]
        reason = f"more than {self.largest} times the median of earlier rounds, {typical:.3g}"
        return {c: f"its change is {length:.3g} long, {reason}" for c, length in norms.items() if length > limit}


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
    - `lengths`: limit of the changes' lengths, which learns from the round's.
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
    """The middle one; of two in the middle, the lower."""
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
        raise FormatError(shorten(reply.problem, _PROBLEM, placeholder=" …"))  # in one line, whatever it says
    if not 1 <= reply.examples <= _EXAMPLES:
        raise FormatError(f"it trained with {reply.examples} examples")
    payload, own = split_own(reply.payload, own_size)
    arrays = compressor.decode(payload, shapes)
    if not all(np.isfinite(array).all() for array in (*arrays, own)):
        raise FormatError("its change holds a NaN or an infinity")
    if bad := [name for name, value in reply.metrics.items() if not isfinite(value)]:
        raise FormatError(f"its {bad[0]} is {reply.metrics[bad[0]]}")
    return Update(client, arrays, reply.examples, reply.metrics, own)
