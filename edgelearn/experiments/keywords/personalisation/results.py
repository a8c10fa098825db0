"""Results of personalisation, user by user and overall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from edgelearn.lab.runs.tables import render, table

_BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class UserResult:
    """Results of one user, averaged over folds.

    Arguments:
    - `name`: of the user.
    - `tested`, `enrolled`: number of clips.
    - `error_before`, `error_after`: share of the user's tested clips that are classified wrongly.
    - `false_accepts_before`, `false_accepts_after`: share of other people's non-keywords that are accepted.
    - `other_errors_before`, `other_errors_after`: share of other people's keywords that are classified wrongly.
    - `nbytes`: stored for the user.
    - `seconds`: of learning; from embeddings, if the learner leaves these as they are.
    """

    name: str
    tested: float
    enrolled: float
    error_before: float
    error_after: float
    false_accepts_before: float
    false_accepts_after: float
    other_errors_before: float
    other_errors_after: float
    nbytes: float
    seconds: float


_COLUMNS = tuple(field.name for field in fields(UserResult) if field.name != "name")


@dataclass(frozen=True, eq=False)
class PersonalisationReport:
    """Results of a learner over users.

    Arguments:
    - `learner`: its settings as text.
    - `shots`: most clips of each word that were enrolled.
    - `users`: results of each user.
    """

    learner: str
    shots: int
    users: tuple[UserResult, ...]

    def column(self, name: str) -> np.ndarray:
        """One field of all users (n,)."""
        return np.array([getattr(user, name) for user in self.users])

    def mean(self, name: str) -> float:
        """Mean of a field over users."""
        return float(self.column(name).mean())

    def worst_tenth(self, name: str) -> float:
        """Mean of the highest tenth of a field (at least one user)."""
        return float(np.sort(self.column(name))[-self._tenth :].mean())

    @property
    def initially_worst(self) -> float:
        """Mean error after personalisation of the tenth of users that was worst before."""
        order = np.argsort(self.column("error_before"), kind="stable")
        return float(self.column("error_after")[order[-self._tenth :]].mean())

    @property
    def reduction(self) -> float:
        """Relative reduction of the mean error."""
        return 1 - self.mean("error_after") / max(self.mean("error_before"), 1e-9)

    @property
    def worst_reduction(self) -> float:
        """Relative reduction of the worst tenth's error: the tenth worst after against the tenth worst before."""
        return 1 - self.worst_tenth("error_after") / max(self.worst_tenth("error_before"), 1e-9)

    @property
    def reduction_interval(self) -> tuple[float, float]:
        """95 % confidence interval of `reduction` (bootstrap over users)."""
        draws = np.random.default_rng(0).integers(len(self.users), size=(_BOOTSTRAPS, len(self.users)))
        before, after = (self.column(name)[draws].mean(1) for name in ("error_before", "error_after"))
        reductions = 1 - after[before > 0] / before[before > 0]
        if not reductions.size:
            return float("nan"), float("nan")
        low, high = np.percentile(reductions, (2.5, 97.5)).tolist()
        return low, high

    def increase(self, name: str) -> float:
        """Mean difference, after minus before, of "false_accepts" or "other_errors"."""
        return float(np.mean(self.column(f"{name}_after") - self.column(f"{name}_before")))

    @property
    def _tenth(self) -> int:
        return max(1, len(self.users) // 10)


def average(reports: Sequence[PersonalisationReport]) -> PersonalisationReport:
    """Mean of reports on the same users with the same clips, such as those of several seeds."""
    users = [
        UserResult(same[0].name, *(float(np.mean([getattr(user, name) for user in same])) for name in _COLUMNS))
        for same in zip(*(report.users for report in reports), strict=True)
    ]
    return PersonalisationReport(reports[0].learner, reports[0].shots, tuple(users))


HEADER = (
    "shots", "enrolled", "users", "error", "after", "reduction (95 %)", "worst tenth", "after", "reduction",
    "initially worst", "false accepts", "others' errors", "bytes", "seconds",
)  # fmt: skip


def to_table(reports: Sequence[PersonalisationReport], width: int = 170) -> str:
    """A line for each report: shots, mean number of clips enrolled for a user, errors and false accepts in percent."""
    rows = table(None, HEADER)
    for report in reports:
        low, high = report.reduction_interval
        rows.add_row(
            str(report.shots), f"{report.mean('enrolled'):.1f}", str(len(report.users)),
            _percent(report.mean("error_before")), _percent(report.mean("error_after")),
            f"{report.reduction:.0%} ({low:.0%} to {high:.0%})",
            _percent(report.worst_tenth("error_before")), _percent(report.worst_tenth("error_after")),
            f"{report.worst_reduction:.0%}", _percent(report.initially_worst),
            *(_change(report.mean(f"{name}_before"), report.mean(f"{name}_after")) for name in _COSTS),
            f"{report.mean('nbytes'):,.0f}", f"{report.mean('seconds'):.2g}",
        )  # fmt: skip
    return render([rows, ", ".join(dict.fromkeys(report.learner for report in reports))], width)


USERS_HEADER = "user", "tested", "enrolled", "error", "after", "false accepts", "others' errors"


def users_table(report: PersonalisationReport, width: int = 120) -> str:
    """A line for each user, highest initial error first: clips, then errors and false accepts in percent."""
    rows = table(f"Users, up to {report.shots} clips of a word", USERS_HEADER)
    for user in sorted(report.users, key=lambda user: -user.error_before):
        rows.add_row(
            user.name, f"{user.tested:.0f}", f"{user.enrolled:.0f}",
            _percent(user.error_before), _percent(user.error_after),
            *(_change(getattr(user, f"{name}_before"), getattr(user, f"{name}_after")) for name in _COSTS),
        )  # fmt: skip
    return render([rows], width)


_COSTS = "false_accepts", "other_errors"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _change(before: float, after: float) -> str:
    return f"{_percent(before)} → {_percent(after)}"
