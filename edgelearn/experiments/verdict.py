"""A claim held against what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether it holds; None where that can't be told."""

    claim: str
    measured: str
    holds: bool | None

    @property
    def word(self) -> str:
        return {True: "pass", False: "FAIL", None: "open"}[self.holds]
