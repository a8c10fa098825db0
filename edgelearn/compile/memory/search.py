"""Search for the fastest plan within budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from edgelearn.compile.layout import Layout
from edgelearn.compile.plan import Plan
from edgelearn.compile.request import Request
from edgelearn.launch import Role
from edgelearn.units import megabytes

from .activation_memory import ActivationMemory
from .budget import Budget
from .candidates import Candidates, find_candidates
from .launch_times import LaunchTimes
from .policies import EXACT
from .solver import Measure, solve
from .strategies import Encoding

ROUNDS = 8  # plans made to come close to a budget
CLOSE = 0.01  # of the budget: near enough
MEASURES: tuple[Measure, ...] = ("stored", "live")

Progress = Callable[[str], None]


class Search:
    """A search among real plans, a few dozen at most.

    Arguments:
    - `layout`: of the plan as requested.
    - `budgets`: limits that all must be met.
    - `launch_times`: None for those known of the device.
    - `allow`: strategies to choose from besides exact ones that stay on the device.
    - `progress`: called with a line for each plan that is tried.
    """

    def __init__(
        self,
        layout: Layout,
        budgets: Sequence[Budget],
        launch_times: LaunchTimes | None,
        allow: Sequence[Encoding],
        progress: Progress,
    ) -> None:
        self.layout, self.budgets, self.allow, self.progress = layout, budgets, allow, progress
        self.first = layout.plan
        self._launch_times = launch_times
        self.tried = [self.first]
        self._by_micro_batch: dict[int, Search] = {self.first.request.micro_batch: self}

    @cached_property
    def launch_times(self) -> LaunchTimes:
        return self._launch_times or LaunchTimes.of(self.layout.device)

    def run(self) -> Plan | None:
        """The first plan if it fits, else the fastest one found that does."""
        if self._fits(self.first):
            return self.first
        if not self._may_choose:
            return None
        for candidates in self._candidates:
            self._approach(candidates)
        if not any(map(self._fits, self.tried)):
            list(self._smallest_plans())
        return min(filter(self._fits, self.tried), key=self.launch_times.step, default=None)

    def is_feasible(self) -> bool:
        """True if a plan fits, as far as is known without looking for the fastest one."""
        impossible = any(self._limit(budget) < 0 for budget in self.budgets)
        if not any(map(self._fits, self.tried)) and self._may_choose and not impossible:
            for plan in self._smallest_plans():
                if self._fits(plan):
                    break
        return any(map(self._fits, self.tried))

    @property
    def is_hopeless(self) -> bool:
        """True if no strategies make a plan that fits, since a single launch uses more."""
        launches = [launch for program in self.first.programs.values() for launch in program.launches]
        used = [{a.buffer for a in launch.accesses if a.buffer.role is Role.TEMPORARY} for launch in launches]
        most = max(sum(buffer.nbytes for buffer in buffers) for buffers in used)
        return any(self._limit(budget) < most for budget in self.budgets if _measure(budget) == "live")

    def smallest(self, budget: Budget) -> int:
        """The fewest of the bytes that `budget` counts, of the plans tried so far."""
        return min(map(budget.used_by, self.tried))

    def most_examples(self, plans: Sequence[Plan]) -> int:
        """A bound on the micro-batch of which a plan of this kind fits, from `plans` of the search's own: activations
        and inputs shrink at most with the examples, partial sums may go altogether, and the rest stays."""
        size = self.first.request.micro_batch
        partial = self.first.bytes_by_role.get(Role.PARTIAL, 0)
        inputs = sum(x.buffer.nbytes for x in self.first.storage.inputs.values())
        stays = self.first.peak_bytes - self.first.arena_bytes - partial - inputs
        bounds = []
        for budget in self.budgets:
            used = min(map(budget.used_by, plans))
            fixed, goes = (stays, partial) if budget.count == "device" else (0, 0)
            bounds.append(size * (budget.nbytes - fixed) / max(1, used - fixed - goes))
        return int(min([size, *bounds]))

    def with_micro_batch(self, size: int) -> Search:
        """The same search for micro-batches of another size."""
        if size not in self._by_micro_batch:
            self._by_micro_batch[size] = self.with_request(replace(self.first.request, micro_batch=size))
        return self._by_micro_batch[size]

    def with_request(self, request: Request) -> Search:
        """The same search for another request."""
        layout = Layout(request, self.layout.device, self.layout.traits)
        return Search(layout, self.budgets, self._launch_times, self.allow, self.progress)

    @property
    def _may_choose(self) -> bool:
        request = self.first.request
        return request.optimizer is not None and not request.activation_memory

    @property
    def stores_all(self) -> bool:
        """True if the first plan fits."""
        return self._fits(self.first)

    def _fits(self, plan: Plan) -> bool:
        return all(budget.fits(plan) for budget in self.budgets)

    @cached_property
    def _candidates(self) -> list[Candidates]:
        """Exact strategies alone come first: with more of them, the solver may reach its limits before the optimum."""
        request, device, traits = self.first.request, self.layout.device, self.layout.traits
        return [
            find_candidates(request, device, traits, self.launch_times, allow)
            for allow in ([(), self.allow] if self.allow else [()])
        ]

    def _smallest_plans(self) -> Iterator[Plan]:
        """Try the plans of the fewest bytes, whatever they take, one after the other."""
        for candidates in self._candidates:
            for measure in MEASURES:
                if measure in map(_measure, self.budgets):
                    yield self._try(solve(candidates, minimise=measure))
        for policy in EXACT[1:]:  # the first plan stores everything
            yield self._try(policy(self.first.request.network))

    def _approach(self, candidates: Candidates) -> None:
        """Solve, and move the limits by what the plan is off, until it is close to a budget."""
        limits = [self._limit(budget) for budget in self.budgets]
        seen: list[ActivationMemory] = []
        for _ in range(ROUNDS):
            least: dict[Measure, int] = {}
            for budget, limit in zip(self.budgets, limits, strict=True):
                least[_measure(budget)] = min(limit, least.get(_measure(budget), limit))
            memory = solve(candidates, **least)
            if memory is None or memory in seen:
                return
            seen.append(memory)
            plan = self._try(memory)
            spare = [budget.nbytes - budget.used_by(plan) for budget in self.budgets]
            fits = min(spare) >= 0
            if fits and any(s < CLOSE * b.nbytes for s, b in zip(spare, self.budgets, strict=True)):
                return
            limits = [limit + s * (fits or s < 0) for limit, s in zip(limits, spare, strict=True)]

    def _limit(self, budget: Budget) -> int:
        """The limit of the solver's measure: that of "live" is about the arena alone."""
        besides = budget.used_by(self.first) - self.first.arena_bytes
        return budget.nbytes - (besides if _measure(budget) == "live" else 0)

    def _try(self, memory: ActivationMemory | None) -> Plan:
        """Lay out a plan with these strategies; the first one again if there are none."""
        if memory is None:
            return self.first
        plan = self.layout.with_memory(memory)
        self.tried.append(plan)
        sizes = ", ".join(f"{megabytes(b.used_by(plan))} of {megabytes(b.nbytes)} {b.count}" for b in self.budgets)
        self.progress(f"plan {len(self.tried)}: {sizes}")
        return plan


def _measure(budget: Budget) -> Measure:
    return "stored" if budget.count == "stored" else "live"
