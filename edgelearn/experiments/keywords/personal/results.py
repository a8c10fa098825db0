"""What personalisation came to, user by user, and what that is on the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from edgelearn.experiments.keywords.metrics import Interval, interval
from edgelearn.lab.runs.tables import render, table

_BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class User:
    """Before and after: the share of a user's tested clips that were wrong, of other people's clips of no word that
    were accepted, and of their words that were wrong. Bytes that an enrolment keeps for
    the user, and seconds that its learning takes, on average: from embeddings, where the learner keeps these as they
    are."""

    name: str
    tested: float
    enrolled: float
    before: float
    after: float
    accepts_before: float
    accepts_after: float
    others_before: float
    others_after: float
    nbytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Personalisation:
    """What `learner` (in words) came to with up to `shots` clips of a word."""

    learner: str
    shots: int
    users: tuple[User, ...]

    def column(self, name: str) -> np.ndarray:
        return np.array([getattr(user, name) for user in self.users])

    def error(self, when: str) -> Interval:
        """Mean over users of the error "before" or "after"."""
        return interval(self.column(when))

    def worst_tenth(self, when: str) -> float:
        """Mean error of the tenth of users (at least one) that are worst off then."""
        return float(np.sort(self.column(when))[-max(1, len(self.users) // 10) :].mean())

    @property
    def was_worst(self) -> float:
        """Mean error after, of those who were worst off before."""
        order = np.argsort(self.column("before"), kind="stable")
        return float(self.column("after")[order[-max(1, len(self.users) // 10) :]].mean())

    @property
    def cut(self) -> float:
        """By what share the mean error over users is smaller after."""
        return 1 - self.column("after").mean() / max(self.column("before").mean(), 1e-9)

    @property
    def worst_cut(self) -> float:
        """By what share the worst tenth's is: whoever is worst off after beside whoever was before."""
        return 1 - self.worst_tenth("after") / max(self.worst_tenth("before"), 1e-9)

    @property
    def cut_range(self) -> tuple[float, float]:
        """Where `cut` lies with 95 % if other users of the same kind were drawn (bootstrap over users)."""
        drawn = np.random.default_rng(0).integers(len(self.users), size=(_BOOTSTRAPS, len(self.users)))
        before, after = (self.column(name)[drawn].mean(1) for name in ("before", "after"))
        found = 1 - after[before > 0] / before[before > 0]
        return tuple(np.percentile(found, (2.5, 97.5)).tolist()) if found.size else (float("nan"),) * 2

    def rise(self, name: str) -> float:
        """Of "accepts" or "others": mean after, less mean before."""
        return float(np.mean(self.column(f"{name}_after") - self.column(f"{name}_before")))

    def to_dict(self) -> dict:
        means = {name: float(self.column(name).mean()) for name in _NUMBERS if name != "tested"}
        return {"learner": self.learner, "shots": self.shots, "users": len(self.users)} | means | {
            "tested": float(self.column("tested").sum()), "cut": self.cut, "cut_range": self.cut_range,
            "worst_before": self.worst_tenth("before"), "worst_after": self.worst_tenth("after"),
            "worst_cut": self.worst_cut, "was_worst": self.was_worst,
        }  # fmt: skip


_NUMBERS = tuple(field.name for field in fields(User) if field.name != "name")


def average(draws: Sequence[Personalisation]) -> Personalisation:
    """The mean over draws (other seeds) of the same users with the same clips."""
    users = [
        User(same[0].name, *(float(np.mean([getattr(user, name) for user in same])) for name in _NUMBERS))
        for same in zip(*(draw.users for draw in draws), strict=True)
    ]
    return Personalisation(draws[0].learner, draws[0].shots, tuple(users))


HEADER = (
    "up to", "enrolled", "users", "error", "after", "cut (95 %)", "worst tenth", "after", "cut", "were worst",
    "false accepts", "others' words", "bytes", "seconds",
)  # fmt: skip


def to_table(found: Sequence[Personalisation], width: int = 170) -> str:
    """A line for each: up to how many clips of a word, how many that were of all words of a user, errors and false
    accepts in percent."""
    lines = table(None, HEADER)
    for p in found:
        d, (low, high) = p.to_dict(), p.cut_range
        percent = {name: f"{100 * value:.2f}" for name, value in d.items() if isinstance(value, float)}
        lines.add_row(
            str(d["shots"]), f"{d['enrolled']:.1f}", str(d["users"]), percent["before"], percent["after"],
            f"{d['cut']:.0%} ({low:.0%} to {high:.0%})", percent["worst_before"], percent["worst_after"],
            f"{d['worst_cut']:.0%}", percent["was_worst"],
            f"{percent['accepts_before']} → {percent['accepts_after']}",
            f"{percent['others_before']} → {percent['others_after']}",
            f"{d['nbytes']:,.0f}", f"{d['seconds']:.2g}",
        )  # fmt: skip
    return render([lines, ", ".join(dict.fromkeys(p.learner for p in found))], width)


USERS_HEADER = "user", "tested", "enrolled", "error", "after", "false accepts", "others' words"


def users_table(found: Personalisation, width: int = 120) -> str:
    """A line for each user, who was worst off first: clips, and errors and false accepts before and after in
    percent."""
    lines = table(f"Users, up to {found.shots} clips of a word", USERS_HEADER)
    for user in sorted(found.users, key=lambda user: -user.before):
        lines.add_row(
            user.name, f"{user.tested:.0f}", f"{user.enrolled:.0f}", f"{100 * user.before:.2f}",
            f"{100 * user.after:.2f}", f"{100 * user.accepts_before:.2f} → {100 * user.accepts_after:.2f}",
            f"{100 * user.others_before:.2f} → {100 * user.others_after:.2f}",
        )  # fmt: skip
    return render([lines], width)
