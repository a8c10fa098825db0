"""Budgets: limits on the memory of a plan, and what they count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgelearn.compile.accounting import account
from edgelearn.compile.plan import Plan
from edgelearn.errors import PlanError
from edgelearn.units import megabytes

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
COUNTS = {
    "device": "all device memory that the plan holds",
    "peak": "activations and workspace at their most, as allocated, and the input",
    "stored": "activations held between the forward and the backward pass",
}


@dataclass(frozen=True)
class Budget:
    """A limit on the memory of a plan.

    Arguments:
    - `nbytes`: the limit, in bytes.
    - `count`: what it limits, one of COUNTS: `"device"` (default), or of a training `"peak"` or `"stored"`, by the
      definitions of `accounting`.

    Raises PlanError for another count.
    """

    nbytes: int
    count: str = "device"

    def __post_init__(self) -> None:
        if self.count not in COUNTS:
            raise PlanError(f"A budget counts {', '.join(COUNTS)}, got '{self.count}'.")

    @classmethod
    def of(cls, value: Budget | int | str) -> Budget:
        """A budget from bytes, or from text such as "60 MB", "20 MiB peak" or "8MB stored". Raises PlanError for other
        values."""
        if isinstance(value, Budget):
            return value
        match = re.fullmatch(r"([\d.]+) *([a-z]*?)(?: *\b(device|peak|stored))?", str(value).strip().lower())
        try:
            if match:
                return cls(int(float(match[1]) * UNITS[match[2]]), match[3] or "device")
        except (ValueError, KeyError, OverflowError):
            pass
        raise PlanError(
            f"Expected a budget such as '60 MB' or '60 MiB' of device memory, '8 MB stored', '20 MB peak', or several "
            f"with commas, got '{value}'."
        )

    def used_by(self, plan: Plan) -> int:
        """Bytes of `plan` that count: 0 where nothing is trained and activations count."""
        if self.count == "device":
            return plan.peak_bytes
        return getattr(account(plan), self.count) if plan.request.optimizer else 0

    def fits(self, plan: Plan) -> bool:
        return self.used_by(plan) <= self.nbytes

    def __str__(self) -> str:
        return f"{megabytes(self.nbytes)} ({COUNTS[self.count]})"


BudgetLike = Budget | int | str | Sequence[Budget | int | str]


def budgets(value: BudgetLike) -> list[Budget]:
    """Limits that all must be met, such as the two of "8 MB stored, 20 MB peak". Raises PlanError if there are none."""
    if isinstance(value, str):
        value = value.split(",")
    limits = [Budget.of(one) for one in (value if isinstance(value, Sequence) else [value])]
    if not limits:
        raise PlanError("Expected at least one budget, got none: None stands for no limit.")
    return limits
