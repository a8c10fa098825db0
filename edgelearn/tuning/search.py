"""The search: every decision of a step gets one of its candidates, the step runs whole, and each decision is charged
with its own launches' time. Then the candidates rotate; the slow ones drop out, as in successive halving (Jamieson and
Talwalkar 2016, arXiv 1502.07943)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from edgelearn import tuned
from edgelearn.device import Context, Device, choose_device
from edgelearn.graph import Plan
from edgelearn.launch import Choice, Decision, Kernels

from .race import Race, settle
from .rig import Rig, Step
from .workloads import Work, works_of

STAGES = ((None, 1), (5, 2), (2, 4))  # candidates kept beside the safe one (at first all), and turns each gets
LEAST_STEPS, MOST_STEPS, LEAST_SECONDS = 2, 9, 0.1  # of a turn
COMPARISONS = 3  # turns before and after tuning

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
    """Tunes `device` and keeps the results in `folder` (the user's by default), where plans find them. Workloads that
    the file there has are done already, unless `again`. Raises FormatError for a damaged file."""

    def __init__(self, device: Device, folder: Path | None = None, again: bool = False, seed: int = 0) -> None:
        self.context = Context(device, profiling=True)
        self.kernels = Kernels(self.context)
        self.folder = folder or tuned.user_folder()
        self.rng = np.random.default_rng(seed)
        self.results = tuned.Results(tuned.Kind.of(device))
        path = tuned.path_of(self.results.kind, self.folder)
        if path.exists() and not again:
            self.results = tuned.load(path)
        self.results.measured |= {"device": device.facts(), "date": datetime.date.today().isoformat()}

    def tune(self, works: Sequence[Work], progress: Progress | None = None) -> Report:
        """Search what these workloads leave open, one after the other: a decision that several have is the first one's.
        `progress(part, name)` is told which part of the whole is done. What was found is kept at once, and when
        interrupted, what is clear by then."""
        rigs = [Rig(work, self.context, self.kernels) for work in works]
        found = [rig.decisions() for rig in rigs]
        known = self.results.workloads
        sizes = [0.0 if work.name in known else rig.seconds() for work, rig in zip(works, rigs, strict=True)]
        settled: set[str] = set()
        for index, (rig, decisions) in enumerate(zip(rigs, found, strict=True)):

            def tell(part: float, index: int = index) -> None:
                if progress:
                    progress((sum(sizes[:index]) + part * sizes[index]) / (sum(sizes) or 1.0), works[index].name)

            if rig.work.name not in known:
                self._search(rig, {n: d for n, d in decisions.items() if n not in settled}, tell)
                known[rig.work.name] = self._compare(rig, decisions, settled)
            settled |= set(decisions)
        return Report(self.results, tuned.save(self.results, self.folder), [work.name for work in works])

    def _search(self, rig: Rig, decisions: Mapping[str, Decision], tell: Callable[[float], None]) -> None:
        races = {name: Race(decision) for name, decision in decisions.items()}
        others = {name: choice for name, choice in self.results.choices.items() if name not in races}
        most = max((len(race.running) for race in races.values()), default=0)
        rounds = [turns * (most if kept is None else min(most, kept + 1)) for kept, turns in STAGES]
        done, steps = 0, LEAST_STEPS
        try:
            for (kept, _), count in zip(STAGES, rounds, strict=True):
                for race in races.values():
                    race.cut(kept, self.rng)
                for turn in range(count):
                    tell(done / sum(rounds))
                    measured = self._turn(rig, others, races, turn, steps)
                    steps = int(np.clip(LEAST_SECONDS / median(s.seconds for s in measured), LEAST_STEPS, MOST_STEPS))
                    done += 1
        finally:
            self.results.choices = others | settle(races.values())
            tuned.save(self.results, self.folder)

    @staticmethod
    def _turn(rig: Rig, others: Mapping[str, Choice], races: Mapping[str, Race], turn: int, steps: int) -> list[Step]:
        entrants = {name: race.entrant(turn) for name, race in races.items()}
        picked = {name: races[name].decision.candidates[number] for name, number in entrants.items()}
        measured = rig.run({**others, **picked}, steps)
        for name, number in entrants.items():
            races[name].add(number, min(step.by_decision[name] for step in measured))  # the least disturbed
        return measured

    def _compare(self, rig: Rig, decisions: Mapping[str, Decision], settled: Set[str]) -> dict:
        """Seconds of a step by the safe choices and by those found, in turns. Where the whole is no faster, what was
        found for it is not worth its kernels: its decisions, less those `settled` before, go back to the safe choices.
        """
        choices = self.results.choices
        safe = {name: decision.candidates[0] for name, decision in decisions.items()}
        slow, fast = [], []
        for _ in range(COMPARISONS):
            slow += rig.run(safe, MOST_STEPS)
            fast += rig.run(choices, MOST_STEPS)
        before, after = (median(step.seconds for step in steps) for steps in (slow, fast))
        if after >= before:
            choices |= {name: choice for name, choice in safe.items() if name not in settled}
        changed = sum(choices[name] != choice for name, choice in safe.items())
        return {
            "before": before,
            "after": after if changed else before,
            "decisions": len(decisions),
            "changed": changed,
        }


def tune(
    *plans: Plan, device: str | Device | None = None, again: bool = False, progress: Progress | None = None
) -> Report:
    """Find the fastest way of computing the steps of `plans` (as `Model.plan` or `Model.phases` make them) on `device`,
    and keep it for the user: plans made from now on use it.

    Raises DeviceError for an unknown device, FormatError where results cannot be read or written.
    """
    return Tuner(choose_device(device).device, again=again).tune(works_of(plans), progress)
