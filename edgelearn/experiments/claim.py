"""What a published claim comes to, point by point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEADER = ("", "claim", "measured")


@dataclass(frozen=True)
class Claim:
    """A claim, what was measured, and whether it holds; None where that can't be told."""

    claim: str
    measured: str
    holds: bool | None

    @property
    def word(self) -> str:
        return {True: "pass", False: "FAIL", None: "open"}[self.holds]


def cells(verdicts: Sequence[Claim]) -> list[tuple[str, ...]]:
    """Rows of a table under HEADER."""
    return [(v.word, v.claim, v.measured) for v in verdicts]
