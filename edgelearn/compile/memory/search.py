"""The search for the fastest plan within budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgelearn.compile.layout import lay_out
from edgelearn.compile.plan import Plan
from edgelearn.device import Device

from .activation_memory import ActivationMemory
from .budget import Budget
from .candidates import Candidates
from .find_candidates import choices
from .launch_times import LaunchTimes
from .policies import EXACT
from .solver import choose
from .strategies import Encoding

ROUNDS = 8  # plans that are made to come close to a budget
CLOSE = 0.01  # of the budget: near enough

Said = Callable[[str], None]


class Search:
    """Among plans as they would be allocated: `first`, which keeps everything or what its request says, and those that
    `found` makes of it, a few dozen at most. `progress` hears of each of these."""

    def __init__(
        self, first: Plan, device: Device, budgets: Sequence[Budget], costs: LaunchTimes | None,
        allow: Sequence[Encoding], progress: Said,
    ) -> None:  # fmt: skip
        self.first, self.device, self.budgets, self.costs, self.allow = first, device, budgets, costs, allow
        self.progress, self.tried = progress, [first]

    def fits(self, plan: Plan) -> bool:
        return all(budget.fits(plan) for budget in self.budgets)

    def least(self, budget: Budget) -> int:
        """Of what counts, the fewest bytes that a plan takes of those tried."""
        return min(map(budget.taken_by, self.tried))

    def found(self) -> Plan | None:
        """The first plan if it fits, else the fastest one that does."""
        request = self.first.request
        if self.fits(self.first):
            return self.first
        if request.optimizer is None or request.activation_memory:
            return None
        self.costs = self.costs or LaunchTimes.of(self.device)
        self._search()
        return min(filter(self.fits, self.tried), key=self.costs.step, default=None)

    def _search(self) -> None:
        """First among exact ways alone: with others beside, the solver may reach its bounds before the best choice."""
        kinds = [(), self.allow] if self.allow else [()]
        found = [choices(self.first.request, self.device, self.first.traits, self.costs, allow) for allow in kinds]
        for one in found:
            self._approach(one)
        if not any(map(self.fits, self.tried)):
            for one in found:
                for counts in dict.fromkeys(map(_counts, self.budgets)):
                    self._try(choose(one, least=counts))
            for policy in EXACT:
                self._try(policy(self.first.request.network))

    def _approach(self, found: Candidates) -> None:
        """Solve, and move limits by what the plan is off, until it is close to a budget."""
        limits = [self._limit(budget) for budget in self.budgets]
        seen: list[ActivationMemory] = []
        for _ in range(ROUNDS):
            least: dict[str, int] = {}
            for budget, limit in zip(self.budgets, limits, strict=True):
                least[_counts(budget)] = min(limit, least.get(_counts(budget), limit))
            activation_memory = choose(found, **least)
            if activation_memory in seen or not (plan := self._try(activation_memory)):
                return
            seen.append(activation_memory)
            spare = [budget.nbytes - budget.taken_by(plan) for budget in self.budgets]
            fits = min(spare) >= 0
            if fits and any(s < CLOSE * b.nbytes for s, b in zip(spare, self.budgets, strict=True)):
                return
            limits = [x + s * (fits or s < 0) for x, s in zip(limits, spare, strict=True)]

    def _limit(self, budget: Budget) -> int:
        """Of a budget, what the program of choices is about: beside the arena there is other memory."""
        besides = budget.taken_by(self.first) - self.first.arena_bytes
        return budget.nbytes - (besides if _counts(budget) == "live" else 0)

    def _try(self, activation_memory: ActivationMemory | None) -> Plan | None:
        """The plan of a choice, if there is one."""
        if activation_memory is None:
            return None
        plan = lay_out(replace(self.first.request, activation_memory=activation_memory), self.device, self.first.traits)
        self.tried.append(plan)
        sizes = ", ".join(f"{budget.taken_by(plan):,} of {budget.nbytes:,} bytes" for budget in self.budgets)
        self.progress(f"plan {len(self.tried)}: {sizes}")
        return plan


def _counts(budget: Budget) -> str:
    """What of the program of choices it limits."""
    return "stored" if budget.count == "stored" else "live"
