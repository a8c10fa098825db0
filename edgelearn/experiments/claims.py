"""Published claims held against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEADER = ("", "claim", "measured")


@dataclass(frozen=True)
class Claim:
    """A claim and its measurement.

    Arguments:
    - `claim`: the claim in words.
    - `measured`: the measurement in words.
    - `passed`: None if it was not measured, or if the measurement doesn't decide.
    """

    claim: str
    measured: str
    passed: bool | None

    @property
    def word(self) -> str:
        """ "passed", "failed" or "not measured"."""
        return {True: "passed", False: "failed", None: "not measured"}[self.passed]


def cells(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """Rows of a table under HEADER."""
    return [(each.word, each.claim, each.measured) for each in claims]


def status(claims: Sequence[Claim]) -> int:
    """Exit status of a command that checks `claims`: 1 if one failed, else 0."""
    return int(any(each.passed is False for each in claims))
