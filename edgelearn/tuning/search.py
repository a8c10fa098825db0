"""The search: every decision of a step gets one of its candidates, the step runs whole, and each decision is charged
with its own launches' time. Then the candidates rotate; the slow ones drop out, as in successive halving (Jamieson and
Talwalkar 2016, arXiv 1502.07943)."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

import numpy as np

from edgelearn import tuned
from edgelearn.device import Context, Device, choose_device
from edgelearn.graph import Plan
from edgelearn.launch import Decision, Kernels

from .race import Race, settle
from .rig import Rig, Step
from .workloads import Work, works_of

# Candidates kept beside the safe one (at first all), turns of each, and when to go on at the latest, as a part of a
# workload's time: what had no turn by then drops out.
STAGES = ((None, 1, 0.6), (5, 2, 0.8), (2, 4, 1.0))
LEAST_STEPS, MOST_STEPS, LEAST_SECONDS = 2, 9, 0.1  # of a turn
COMPARISONS, COMPARED_STEPS = 3, 5  # turns, and steps of each, before and after tuning
COMPILE_SECONDS = 0.15  # a guess of a kernel's, for sharing out the time

Progress = Callable[[float, str], None]


@dataclass
class Report:
    """What came of a search: results as saved in `path`, and the names of the workloads that were asked for."""

    results: tuned.Results
    path: Path
    names: list[str]

    def __str__(self) -> str:
        lines = [f"{'step of':<24}{'before':>12}{'after':>12}{'decisions':>12}{'changed':>10}"]
        for name in self.names:
            w = self.results.workloads[name]
            before, after = (f"{w[when] * 1e3:.2f} ms" for when in ("before", "after"))
            lines.append(f"{name:<24}{before:>12}{after:>12}{w['decisions']:>12}{w['changed']:>10}")
        return "\n".join([*lines, f"Kept in {self.path}, where plans find it."])


class Tuner:
    """Tunes `device` and keeps the results in `folder` (the user's by default), where plans find them. What the file
    there has is settled. Raises FormatError for a damaged file."""

    def __init__(self, device: Device, folder: Path | None = None, seed: int = 0) -> None:
        self.context = Context(device, profiling=True)
        self.kernels = Kernels(self.context)
        self.rng = np.random.default_rng(seed)
        self.results = tuned.Results(tuned.Kind.of(device))
        self.path = tuned.path_of(self.results.kind, folder or tuned.user_folder())
        if self.path.exists():
            self.results = tuned.load(self.path)
        self.results.measured |= {"device": device.facts(), "date": datetime.date.today().isoformat()}

    def tune(
        self, works: Sequence[Work], minutes: float | None = None, again: bool = False, progress: Progress | None = None
    ) -> Report:
        """Search what these workloads leave open, or with `again` all that they decide, one after the other, for about
        `minutes`. A decision that several have is the first one's. `progress(part, name)` is told which part of the
        whole is done. What was found is kept at once; when interrupted, what is clear by then."""
        rigs = [Rig(work, self.context, self.kernels) for work in works]
        if again:
            for rig in rigs:
                self.results.workloads.pop(rig.work.name, None)
                for name in rig.decisions:
                    self.results.choices.pop(name, None)
        todo = [rig for rig in rigs if rig.work.name not in self.results.workloads or self._open(rig)]
        sizes = [_seconds(rig, self._open(rig)) for rig in todo]
        for index, rig in enumerate(todo):

            def tell(part: float, index: int = index) -> None:
                if progress:
                    progress((sum(sizes[:index]) + part * sizes[index]) / sum(sizes), todo[index].work.name)

            tell(0.0)
            new = self._open(rig)
            self._search(rig, new, (minutes or inf) * 60 * sizes[index] / sum(sizes), tell)
            self.results.workloads[rig.work.name] = self._compare(rig, set(new))
            tuned.save(self.results, self.path.parent)
        return Report(self.results, self.path, [work.name for work in works])

    def _open(self, rig: Rig) -> dict[str, Decision]:
        """What a workload has to decide that is not settled."""
        return {name: decision for name, decision in rig.decisions.items() if name not in self.results.choices}

    def _search(
        self, rig: Rig, decisions: Mapping[str, Decision], seconds: float, tell: Callable[[float], None]
    ) -> None:
        races = {name: Race(decision) for name, decision in decisions.items()}
        rounds, start = _rounds(decisions), time.monotonic()
        done, steps, interrupted = 0, LEAST_STEPS, True
        try:
            for (kept, _, part), count in zip(STAGES, rounds, strict=True):
                for race in races.values():
                    race.cut(kept, self.rng)
                for turn in range(count):
                    tell((done + turn) / sum(rounds))
                    if turn and time.monotonic() - start > part * seconds:
                        break
                    measured = self._turn(rig, races, turn, steps)
                    steps = int(np.clip(LEAST_SECONDS / median(s.seconds for s in measured), LEAST_STEPS, MOST_STEPS))
                done += count
            interrupted = False
        finally:
            found = settle(races.values())
            if interrupted:  # what has not beaten the safe choice may do so yet
                found = {name: choice for name, choice in found.items() if choice != decisions[name].candidates[0]}
            self.results.choices |= found
            tuned.save(self.results, self.path.parent)

    def _turn(self, rig: Rig, races: Mapping[str, Race], turn: int, steps: int) -> list[Step]:
        entrants = {name: race.entrant(turn) for name, race in races.items()}
        picked = {name: races[name].decision.candidates[number] for name, number in entrants.items()}
        measured = rig.run(self.results.choices | picked, steps)
        for name, number in entrants.items():
            races[name].add(number, min(step.by_decision[name] for step in measured))  # the least disturbed
        return measured

    def _compare(self, rig: Rig, new: Set[str]) -> dict:
        """Seconds of a step by the safe choices and by those found, in turns: lower quartiles, which other work on the
        machine disturbs less than medians. Where the whole is no faster, what was found for it is not worth its
        kernels: the decisions that are `new` go back to the safe choices."""
        choices = self.results.choices
        safe = {name: decision.candidates[0] for name, decision in rig.decisions.items()}
        slow, fast = [], []
        for _ in range(COMPARISONS):
            slow += rig.run(safe, COMPARED_STEPS)
            fast += rig.run(choices, COMPARED_STEPS)
        before, after = (float(np.quantile([step.seconds for step in steps], 0.25)) for steps in (slow, fast))
        if after >= before:
            choices |= {name: choice for name, choice in safe.items() if name in new}
        changed = sum(choices[name] != choice for name, choice in safe.items())
        after = after if changed else before
        return {"before": before, "after": after, "decisions": len(safe), "changed": changed}


def _rounds(decisions: Mapping[str, Decision]) -> list[int]:
    """Turns of each stage until every candidate that is still in the race has had its own."""
    most = max((len(decision.candidates) for decision in decisions.values()), default=0)
    return [turns * (most if kept is None else min(most, kept + 1)) for kept, turns, _ in STAGES]


def _seconds(rig: Rig, decisions: Mapping[str, Decision]) -> float:
    """A guess of how long the search takes."""
    kernels = {(n.split()[0], *sorted(c.items())) for n, d in decisions.items() for c in d.candidates}
    steps = sum(_rounds(decisions)) * (LEAST_STEPS + 1) + COMPARISONS * 2 * (COMPARED_STEPS + 1)
    return COMPILE_SECONDS * len(kernels) + steps * rig.seconds()


def tune(
    *plans: Plan, device: str | Device | None = None, again: bool = False, progress: Progress | None = None
) -> Report:
    """Find the fastest way of computing the steps of `plans` (as `Model.plan` or `Model.phases` make them) on `device`,
    and keep it for the user: plans made from now on use it.

    Raises DeviceError for an unknown device, FormatError where results cannot be read or written.
    """
    return Tuner(choose_device(device).device).tune(works_of(plans), again=again, progress=progress)
