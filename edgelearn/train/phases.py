"""The plans of a whole job: what is on the device one after the other, never together."""

from __future__ import annotations

from collections.abc import Callable

from edgelearn.compile import BudgetLike, Plan
from edgelearn.display import Displayed
from edgelearn.errors import PlanError
from edgelearn.units import MB

FORWARD_SIZES = (16, 8, 4, 2, 1)  # examples at a time where nothing is trained


class Phases(Displayed, dict[str, Plan]):
    """Plans by the name of their phase. One is on the device at a time, so the job's peak is the largest one's."""

    @property
    def peak_bytes(self) -> int:
        return max(plan.peak_bytes for plan in self.values())

    def to_dict(self) -> dict:
        """The JSON-able record for a run."""
        return {"peak_bytes": self.peak_bytes, "phases": {name: plan.to_dict() for name, plan in self.items()}}

    @property
    def headline(self) -> str:
        return f"{', '.join(self)}: {self.peak_bytes / MB:.2f} MB"

    def __str__(self) -> str:
        """The training plan by role, and the peaks of all phases."""
        lines = [str(self["train"])]
        lines += [
            f"  {f'(phase: {name}, {plan.request.micro_batch} at a time)':<38}{plan.peak_bytes / MB:>10.2f} MB"
            for name, plan in self.items()
            if name != "train"
        ]
        return "\n".join([*lines, f"  {'most device memory of the whole job':<38}{self.peak_bytes / MB:>10.2f} MB"])


def largest_that_fits(make: Callable[[int], Plan], budget: BudgetLike | None) -> Plan:
    """The plan of the most examples at a time that fits `budget`; the one of a single example is refused otherwise."""
    for size in FORWARD_SIZES[:-1] if budget is not None else ():
        try:
            return make(size)
        except PlanError:
            continue
    return make(FORWARD_SIZES[0] if budget is None else FORWARD_SIZES[-1])
