"""How much memory a plan may take, and by which count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from edgelearn.compile.accounting import account
from edgelearn.compile.plan import Plan
from edgelearn.errors import PlanError

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
COUNTS = {
    "device": "all device memory that the plan holds",
    "peak": "activations and workspace at their most, as allocated, and the input",
    "stored": "what lies between forward and backward pass",
}


@dataclass(frozen=True)
class Budget:
    """At most `nbytes` of what `count` says, one of COUNTS. "peak" and "stored" are those of graph/accounting.py, and
    of trainings; nothing is stored where nothing is trained. Raises PlanError for another count."""

    nbytes: int
    count: str = "device"

    def __post_init__(self) -> None:
        if self.count not in COUNTS:
            raise PlanError(f"'{self.count}' is nothing that a budget counts: choose {', '.join(COUNTS)}.")

    @classmethod
    def of(cls, value: Budget | int | str) -> Self:
        """From bytes, or from text such as "60 MB", "20 MiB peak" or "8MB stored"; without a count it is all device
        memory. Raises PlanError for what is none of that."""
        if isinstance(value, Budget):
            return value
        found = re.fullmatch(r"([\d.]+) *([a-z]*?)(?: *\b(device|peak|stored))?", str(value).strip().lower())
        try:
            return cls(int(float(found[1]) * UNITS[found[2]]), found[3] or "device")
        except (TypeError, ValueError, KeyError, OverflowError):
            raise PlanError(
                f"'{value}' is no budget: write a size, such as 60MB or 60MiB for all device memory, and if you mean "
                f"activations alone, what counts of them: '8 MB stored', '20 MB peak', or both with a comma."
            ) from None

    def taken_by(self, plan: Plan) -> int:
        """The bytes of `plan` that count."""
        if self.count == "device":
            return plan.peak_bytes
        return getattr(account(plan), self.count) if plan.request.optimizer else 0

    def fits(self, plan: Plan) -> bool:
        return self.taken_by(plan) <= self.nbytes

    def __str__(self) -> str:
        return f"{self.nbytes:,} bytes ({COUNTS[self.count]})"


BudgetLike = Budget | int | str | Sequence[Budget | int | str]


def budgets(value: BudgetLike) -> list[Budget]:
    """All that must be met at once: of "8 MB stored, 20 MB peak" these two. Raises as `Budget.of`, and for none."""
    if isinstance(value, str):
        value = value.split(",")
    found = [Budget.of(one) for one in (value if isinstance(value, Sequence) else [value])]
    if not found:
        raise PlanError("A budget without a size: leave it out (None) where memory needs no limit.")
    return found
