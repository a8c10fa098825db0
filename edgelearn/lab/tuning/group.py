"""Workloads that have decisions in common: what is fastest for one may not be for another, so they run in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from statistics import median

from edgelearn.launch import Decision, KernelConfig

from .rig import Rig, Step

COMPARISONS = 5  # turns before and after tuning
KERNEL_SECONDS, TURN_SECONDS = 0.15, 0.2  # guesses for compiling a kernel, and for what a turn costs beside its steps


class Group:
    """Some workloads, of which `open_` names the decisions that tuning is about."""

    def __init__(self, rigs: Sequence[Rig], open_: Set[str]) -> None:
        self.rigs = list(rigs)
        self.open = {name: d for name, d in self.decisions.items() if name in open_}

    def __str__(self) -> str:
        return ", ".join(rig.work.name for rig in self.rigs)

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        return {name: decision for rig in self.rigs for name, decision in rig.decisions.items()}

    @cached_property
    def safe(self) -> dict[str, KernelConfig]:
        return {name: decision.candidates[0] for name, decision in self.decisions.items()}

    def run(self, choices: Mapping[str, KernelConfig]) -> dict[str, float]:
        """Nanoseconds by decision, added up over the workloads: of each the step that was disturbed least."""
        spent: Counter[str] = Counter()
        for rig in self.rigs:
            steps = rig.run(choices)
            for name in rig.decisions:
                spent[name] += min(step.by_decision[name] for step in steps)
        return spent

    def compare(self, choices: Mapping[str, KernelConfig]) -> dict[str, tuple[float, float]]:
        """Seconds of each workload's step by the safe choices and by these, in turns: of each turn the step that was
        disturbed least, of the turns the median."""
        found = {}
        for rig in self.rigs:
            turns = [(_least(rig.run(self.safe)), _least(rig.run(choices))) for _ in range(COMPARISONS)]
            found[rig.work.name] = tuple(median(times) for times in zip(*turns, strict=True))
        return found

    def seconds(self, turns: int) -> float:
        """A guess of how long it takes to tune in so many turns."""
        kernels = {(n.split()[0], *sorted(c.items())) for n, d in self.open.items() for c in d.candidates}
        turn = sum(TURN_SECONDS + 3 * rig.seconds() for rig in self.rigs)
        return KERNEL_SECONDS * len(kernels) + (turns + 2 * COMPARISONS) * turn


def groups_of(rigs: Iterable[Rig], settled: Set[str]) -> list[Group]:
    """Groups that have no decision in common but settled ones."""
    found: list[tuple[set[str], list[Rig]]] = []
    for rig in rigs:
        names, members = set(rig.decisions) - settled, []
        for group in [group for group in found if group[0] & names]:
            found.remove(group)
            names, members = names | group[0], members + group[1]
        found.append((names, [*members, rig]))
    return [Group(members, names) for names, members in found]


def _least(steps: Iterable[Step]) -> float:
    return min(step.seconds for step in steps)
