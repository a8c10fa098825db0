"""Plans within a budget: as requested, or with the fastest ways back for activations that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.ops import Traits

from .budget import Budget, BudgetLike, budgets
from .choices import choices
from .choosing import choose
from .costs import Costs
from .layout import lay_out
from .options import Choices
from .plan import Plan, Request
from .policies import EXACT
from .saving import Saving, pages_of
from .ways import Stash

ROUNDS = 8  # plans that are made to come close to a budget
CLOSE = 0.01  # of the budget: near enough


def make_plan(
    request: Request,
    device: Device,
    budget: BudgetLike | None = None,
    traits: Traits | None = None,
    costs: Costs | None = None,
    also: Sequence[Stash] = (),
) -> Plan:
    """Plan training (with an optimizer), evaluation and prediction on `device`, for its `traits` unless others are
    given.

    Where a training that keeps all activations is over the `budget` (see `budgets`), and the request doesn't say
    which to keep, the fastest choice of ways back that fits is looked for, by the `costs` of launches (by default
    `Costs.of(device)`). It is made of exact ways that stay on the device, and of `also` others: Compress(Float16()),
    which is lossy, or Page(), for which a few copies are timed unless `costs` are given.

    Raises PlanError for an impossible request or one that doesn't fit, naming what it needs, what would fit, and the
    least that is possible; DeviceError when the device cannot hold it; and PagingError. Nothing has been allocated or
    run by then.
    """
    traits = traits or Traits.of(device)
    plan = lay_out(request, device, traits)
    if budget is not None:
        limits = budgets(budget)
        if not all(limit.fits(plan) for limit in limits):
            plan = _Search(plan, device, limits, costs, also).plan()
    if plan.peak_bytes > device.memory:
        raise DeviceError(
            f"The plan needs {plan.peak_bytes:,} bytes, but {device.id} has {device.memory:,}. "
            f"Use a smaller micro-batch (now {request.micro_batch}), train fewer layers, or choose another device."
        )
    role, size = max(plan.bytes_by_role.items(), key=lambda item: item[1])
    if size > device.largest_buffer:
        raise DeviceError(
            f"The plan needs {size:,} bytes of {role.value} in one piece, but {device.id} gives at most "
            f"{device.largest_buffer:,}. Use a smaller micro-batch (now {request.micro_batch})."
        )
    return plan


class _Search:
    """For the fastest plan that fits, among plans as they would be allocated."""

    def __init__(
        self, plan: Plan, device: Device, budgets: list[Budget], costs: Costs | None, also: Sequence[Stash]
    ) -> None:
        self.first, self.device, self.budgets, self.costs, self.also = plan, device, budgets, costs, also
        self.tried = [plan]
        if plan.request.optimizer is not None and not plan.request.saving:
            pages = pages_of(also)
            self.costs = costs or (Costs.of(device).with_pages(device, pages.folder) if pages else Costs.of(device))
            self._search()

    def fits(self, plan: Plan) -> bool:
        return all(budget.fits(plan) for budget in self.budgets)

    def least(self, budget: Budget) -> int:
        return min(map(budget.taken_by, self.tried))

    def plan(self) -> Plan:
        """Raises PlanError where nothing fits."""
        fitting = [plan for plan in self.tried if self.fits(plan)]
        if not fitting:
            raise PlanError(self._refusal())
        return min(fitting, key=self.costs.step)

    def _search(self) -> None:
        """First among exact ways alone: with others beside, the best choice may not be found in time."""
        for also in [(), self.also] if self.also else [()]:
            found = choices(self.first.request, self.device, self.first.traits, self.costs, also)
            self._approach(found)
        if not any(map(self.fits, self.tried)):
            for counts in dict.fromkeys(map(_counts, self.budgets)):
                self._try(choose(found, least=counts))
            for policy in EXACT:
                self._try(policy(self.first.request.network))

    def _approach(self, found: Choices) -> None:
        """Solve, and move limits by what the plan is off, until it is close to a budget."""
        limits = [self._limit(budget) for budget in self.budgets]
        seen: list[Saving] = []
        for _ in range(ROUNDS):
            least: dict[str, int] = {}
            for budget, limit in zip(self.budgets, limits, strict=True):
                least[_counts(budget)] = min(limit, least.get(_counts(budget), limit))
            saving = choose(found, **least)
            if saving is None or saving in seen:
                return
            seen.append(saving)
            plan = self._try(saving)
            spare = [budget.nbytes - budget.taken_by(plan) for budget in self.budgets]
            fits = min(spare) >= 0
            if fits and any(s < CLOSE * b.nbytes for s, b in zip(spare, self.budgets, strict=True)):
                return
            limits = [x + s * (fits or s < 0) for x, s in zip(limits, spare, strict=True)]

    def _limit(self, budget: Budget) -> int:
        """Of a budget, what the program of choices is about: beside the arena there is other memory."""
        besides = budget.taken_by(self.first) - self.first.arena_bytes
        return budget.nbytes - (besides if _counts(budget) == "live" else 0)

    def _try(self, saving: Saving) -> Plan:
        plan = lay_out(replace(self.first.request, saving=saving), self.device, self.first.traits)
        self.tried.append(plan)
        return plan

    def _refusal(self) -> str:
        lines = [self._shortfall(budget) for budget in self.budgets if not budget.fits(self.first)]
        if len(lines) > 1 and all(self.least(budget) <= budget.nbytes for budget in self.budgets):
            lines.append("Each can be met, but not all at once.")
        advice = "Freeze more layers, use plain SGD (no optimizer state) or a smaller network."
        if self.first.request.micro_batch > 1:
            one = lay_out(replace(self.first.request, micro_batch=1), self.device, self.first.traits)
            search = _Search(one, self.device, self.budgets, self.costs, self.also)
            fits = any(map(search.fits, search.tried))
            most = " and ".join(f"{search.least(budget):,}" for budget in self.budgets)
            lines.append(f"A micro-batch of 1 would need {most} bytes{'.' if fits else ', still too much.'}")
            advice = "" if fits else advice
        return " ".join([*lines, advice]).rstrip() + f"\n{self.first}"

    def _shortfall(self, budget: Budget) -> str:
        need, least = budget.taken_by(self.first), self.least(budget)
        text = f"The plan needs {need:,} bytes, over the budget of {budget}."
        if least < need:
            text += f" Bringing activations back instead of keeping them, it would need {least:,} at least."
        return text


def _counts(budget: Budget) -> str:
    """What of the program of choices it limits."""
    return "stored" if budget.count == "stored" else "live"
