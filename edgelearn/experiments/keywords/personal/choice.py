"""Settings of a learner that are chosen on other users than those on whom they are judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from edgelearn.keywords.learners import Learner, Neighbours

from .results import Personalisation
from .trial import Trial

# From careful to bold.
CANDIDATES: tuple[Learner, ...] = tuple(
    Neighbours(weight, nearest=nearest) for weight, nearest in product((4.0, 8.0, 16.0, 24.0), (1, 2))
)
ALLOWED = 0.01  # of other people's clips of no word, and of their words, may go wrong besides


def personalise_chosen(
    trial: Trial, shots: int, candidates: Sequence[Learner] = CANDIDATES, allowed: float = ALLOWED
) -> Personalisation:
    """Users of each half of the people (see Protocol) get that of `candidates` which is best for the other half's."""
    found = [trial.run(learner, shots) for learner in candidates]
    best = {half: choose([_of_half(each, trial, not half) for each in found], allowed) for half in (False, True)}
    chosen = {half: found[number] for half, number in best.items()}
    users = [chosen[trial.half_of(user.name)].users[position] for position, user in enumerate(found[0].users)]
    name = " or ".join(dict.fromkeys(each.learner for each in chosen.values()))
    return Personalisation(name, shots, tuple(users))


def choose(found: Sequence[Personalisation], allowed: float = ALLOWED) -> int:
    """Which has the smallest error, among those that cost other people no more than `allowed`; the first where all
    do."""
    able = [i for i, each in enumerate(found) if max(each.rise("accepts"), each.rise("others")) <= allowed] or [0]
    return min(able, key=lambda i: found[i].column("after").mean())


def _of_half(found: Personalisation, trial: Trial, half: bool) -> Personalisation:
    users = tuple(user for user in found.users if trial.half_of(user.name) == half)
    return Personalisation(found.learner, found.shots, users)
