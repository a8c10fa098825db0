"""Which combinations of precision, activation memory, micro-batch and trained layers fit, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgelearn.compile.accounting import account
from edgelearn.compile.combination import Combination
from edgelearn.compile.layout import Layout
from edgelearn.compile.plan import Plan
from edgelearn.compile.precision.precision import Precision
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.ops import Traits

from .budget import BudgetLike, budgets
from .launch_times import LaunchTimes
from .refusal import batch_statistics
from .search import Search
from .strategies import Encoding


@dataclass(frozen=True)
class PlannedCombination:
    """A combination that fits.

    Arguments:
    - `combination`: the settings.
    - `plan`: of its training step; every byte.
    - `seconds`: predicted for a step, that is for one update from a mini-batch.
    - `differs`: what makes it another training than the one asked for: "precision", "layers", "BatchNorm"; none if only
      memory and time differ.
    """

    combination: Combination
    plan: Plan
    seconds: float
    differs: tuple[str, ...] = ()

    @property
    def device_bytes(self) -> int:
        """All device memory of the plan."""
        return self.plan.peak_bytes

    @property
    def activation_bytes(self) -> int:
        """Activations and workspace at their fullest moment, and the input: what a "peak" budget limits."""
        return account(self.plan).peak


@dataclass(frozen=True)
class RefusedCombination:
    """A precision and trained layers with which no micro-batch fits.

    Arguments:
    - `combination`: the settings.
    - `reason`: why.
    - `nbytes`: the fewest bytes found, for each limit of the budget; none if no plan can be made.
    """

    combination: Combination
    reason: str
    nbytes: tuple[int, ...] = ()


class CombinationPlanner:
    """Plans combinations of one training within a budget.

    For each precision and each choice of layers there are at most two: everything stored, with the largest micro-batch
    that fits so; and the fastest strategies for activations with the largest micro-batch that fits at all.
    Micro-batches are halves of the mini-batch, its quarters and so on, so that all are equal.

    Arguments:
    - `request`: the training as it should be: whole mini-batch, everything stored.
    - `device`: where it will run.
    - `budget`: limits, as in `make_plan`.
    - `launch_times`: by which times are predicted.
    - `allow`: extra strategies (default none).
    - `progress`: called with a line for each combination (default: nothing).
    """

    def __init__(
        self, request: Request, device: Device, budget: BudgetLike, launch_times: LaunchTimes,
        allow: Sequence[Encoding] = (), progress: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.request, self.device, self.limits = request, device, budgets(budget)
        self.text = budget if isinstance(budget, str) else ", ".join(f"{b.nbytes} {b.count}" for b in self.limits)
        self.times, self.allow, self.progress, self.traits = launch_times, tuple(allow), progress, Traits.of(device)

    def plan(self, asked: Combination) -> tuple[list[PlannedCombination], list[RefusedCombination]]:
        """Plans with the precision and the trained layers of `asked`, or why there are none."""
        self.progress(asked.name)
        try:
            network = asked.network(self.request.network)
            request = replace(self.request, network=network, precision=asked.formats)
            search = Search(
                Layout(request, self.device, self.traits), self.limits, self.times, self.allow,
                lambda text: None,
            )  # fmt: skip
        except PlanError as error:
            return [], [RefusedCombination(asked, str(error).splitlines()[0])]
        searches = {size: search if size == request.micro_batch else None for size in self._sizes}

        def at(size: int) -> Search:
            found = searches[size] = searches[size] or search.with_micro_batch(size)
            return found

        stored = self._largest(at, lambda found: found.stores_all, lambda found: [found.first])
        largest = self._largest(at, Search.is_feasible, lambda found: found.tried, stored)
        found = []
        if stored:
            found.append(self._planned(asked, "keep_all", at(stored), at(stored).first))
        if largest and largest != stored:
            plan = at(largest).run()
            found += [self._planned(asked, self.text, at(largest), plan)] if plan else []
        if found:
            return found, []
        one = at(self._sizes[-1])
        sizes = tuple(one.smallest(limit) for limit in self.limits)
        return [], [RefusedCombination(asked, "too large", sizes)]

    @property
    def _sizes(self) -> list[int]:
        """Micro-batches, largest first."""
        sizes = [self.request.micro_batch]
        while sizes[-1] % 2 == 0 and not self.request.losses.ordered:
            sizes.append(sizes[-1] // 2)
        return sizes if sizes[-1] == 1 or self.request.losses.ordered else [*sizes, 1]

    def _largest(
        self, at: Callable[[int], Search], fits: Callable[[Search], bool], plans: Callable[[Search], list[Plan]],
        known: int = 0,
    ) -> int:  # fmt: skip
        """The largest of the sizes of which a search `fits`; `known` does, or is 0. `plans`: those that were tried."""
        most = self._sizes[0]
        for size in self._sizes:
            if size <= known:
                return known
            if size <= most:
                search = at(size)
                if fits(search):
                    return size
                most = min(most, search.most_examples(plans(search)))
        return known

    def _planned(self, asked: Combination, memory: str, search: Search, plan: Plan) -> PlannedCombination:
        size = plan.request.micro_batch
        other_size = size != self.request.micro_batch
        differs = {
            "precision": plan.request.precision != self.request.precision and plan.request.precision != Precision(),
            "layers": plan.request.trainable != self.request.trainable,
            "BatchNorm": other_size and batch_statistics(search),
        }
        combination = replace(asked, activation_memory=memory, micro_batch=size if other_size else None)
        return PlannedCombination(combination, plan, self.times.step(plan), tuple(k for k, v in differs.items() if v))
