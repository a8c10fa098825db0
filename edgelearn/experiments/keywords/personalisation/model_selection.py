"""Model selection: a learner's settings are selected on other users than those they are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from edgelearn.keywords.learners import Learner, Neighbours

from .cross_validation import CrossValidation
from .results import PersonalisationReport

# From cautious to bold.
CANDIDATES: tuple[Learner, ...] = tuple(
    Neighbours(weight, nearest=nearest) for weight, nearest in product((4.0, 8.0, 16.0, 24.0), (1, 2))
)
MAX_INCREASE = 0.01  # of false accepts, and of errors on other people's words


def run_selected(
    validation: CrossValidation, shots: int, candidates: Sequence[Learner] = CANDIDATES,
    max_increase: float = MAX_INCREASE,
) -> PersonalisationReport:  # fmt: skip
    """Test every user with the candidate that is best for the users of the other half of the people.

    Arguments:
    - `validation`: the users.
    - `shots`: enrolled clips of each word, at most.
    - `candidates`: learners to select from.
    - `max_increase`: see `select`.
    """
    reports = [validation.run(learner, shots) for learner in candidates]
    best = {
        half: reports[select([_of_half(report, validation, not half) for report in reports], max_increase)]
        for half in (False, True)
    }
    users = [best[validation.half_of(user.name)].users[i] for i, user in enumerate(reports[0].users)]
    return PersonalisationReport(" or ".join(dict.fromkeys(r.learner for r in best.values())), shots, tuple(users))


def select(reports: Sequence[PersonalisationReport], max_increase: float = MAX_INCREASE) -> int:
    """Index of the report with the smallest error, among those in which neither false accepts nor errors on other
    people's words rise by more than `max_increase`; 0 if there is none."""
    allowed = [
        i for i, report in enumerate(reports)
        if max(report.increase("false_accepts"), report.increase("other_errors")) <= max_increase
    ]  # fmt: skip
    return min(allowed or [0], key=lambda i: reports[i].column("error_after").mean())


def _of_half(report: PersonalisationReport, validation: CrossValidation, half: bool) -> PersonalisationReport:
    users = tuple(user for user in report.users if validation.half_of(user.name) == half)
    return PersonalisationReport(report.learner, report.shots, users)
