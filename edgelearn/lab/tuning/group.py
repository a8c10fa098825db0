"""Workloads with common decisions: the fastest for one may not be the fastest for another, so they run in turn."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property, partial

from edgelearn.lab.measure import RoundsConfig, Sample, measure_in_turn, quartiles, usable_cores
from edgelearn.launch import Decision, KernelConfig

from .rig import Rig, TunedStep

COMPARISONS = 5  # turns before and after tuning
KERNEL_SECONDS, TURN_SECONDS = 0.15, 0.2  # estimates: compiling a kernel, and a turn without its steps


class Group:
    """Some workloads; `open_` names the decisions to tune."""

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
        """Nanoseconds by decision, summed over the workloads; the fastest step of each counts."""
        spent: dict[str, float] = defaultdict(float)
        for rig in self.rigs:
            steps = rig.run(choices)
            for name in rig.decisions:
                spent[name] += min(step.by_decision[name] for step in steps)
        return spent

    def compare(self, choices: Mapping[str, KernelConfig]) -> dict[str, tuple[float, float]]:
        """(seconds with the safe choices, seconds with these) of each workload's step, in turn: the median over turns
        of the fastest step."""
        config, cores = RoundsConfig(COMPARISONS, 0.0, attempts=1), usable_cores()
        seconds = {}
        for rig in self.rigs:
            samplers = {"safe": partial(_fastest, rig, self.safe), "tuned": partial(_fastest, rig, choices)}
            blocks = measure_in_turn(samplers, cores, config)
            safe, tuned = (quartiles([block.seconds for block in blocks[name]])[1] for name in samplers)
            seconds[rig.work.name] = safe, tuned
        return seconds

    def seconds(self, turns: int) -> float:
        """An estimate of the time of tuning in so many turns."""
        kernels = {(n.split()[0], *sorted(c.items())) for n, d in self.open.items() for c in d.candidates}
        turn = sum(TURN_SECONDS + 3 * rig.seconds() for rig in self.rigs)
        return KERNEL_SECONDS * len(kernels) + (turns + 2 * COMPARISONS) * turn


def groups_of(rigs: Iterable[Rig], settled: Set[str]) -> list[Group]:
    """Groups of workloads that have only settled decisions in common."""
    found: list[tuple[set[str], list[Rig]]] = []
    for rig in rigs:
        names, members = set(rig.decisions) - settled, []
        for group in [group for group in found if group[0] & names]:
            found.remove(group)
            names, members = names | group[0], members + group[1]
        found.append((names, [*members, rig]))
    return [Group(members, names) for names, members in found]


def _fastest(rig: Rig, choices: Mapping[str, KernelConfig]) -> Sample:
    """The fastest of some steps."""
    cpu = time.process_time()
    steps: Sequence[TunedStep] = rig.run(choices)
    return Sample([min(step.seconds for step in steps)], time.process_time() - cpu)
