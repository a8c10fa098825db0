"""The search: every decision of a step gets one of its candidates, the step runs whole, and each decision is charged
with its own launches' time. Then the candidates rotate; the slow ones drop out, as in successive halving (Jamieson and
Talwalkar 2016, arXiv 1502.07943). What several workloads decide is raced in all of them, and their times are added."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from edgelearn import tuned
from edgelearn.compile import Plan
from edgelearn.device import Device, DeviceKind
from edgelearn.runtime import Context, Kernels, choose_device

from .group import Group, groups_of
from .race import Race, settle
from .rig import Rig
from .workloads import Work, works_of

# Candidates kept beside the safe one (at first all), turns of each, and when to go on at the latest, as a part of a
# workload's time: what had no turn by then drops out.
STAGES = ((None, 1, 0.6), (5, 2, 0.8), (2, 4, 1.0))

Progress = Callable[[float, str], None]


@dataclass
class TuningReport:
    """What came of a search: results as saved in `path`, and the names of the workloads that were asked for."""

    results: tuned.TuningResults
    path: Path
    names: list[str]

    def __str__(self) -> str:
        lines = [f"{'step of':<24}{'before':>12}{'after':>12}{'decisions':>12}{'changed':>10}"]
        for name in self.names:
            w = self.results.workloads[name]
            before, after = (f"{w[when] * 1e3:.2f} ms" for when in ("before", "after"))
            lines.append(f"{name:<24}{before:>12}{after:>12}{w['decisions']:>12}{w['changed']:>10}")
        return "\n".join([*lines, f"Kept in {self.path}"])


class Tuner:
    """Tunes `device` and keeps the results in `folder` (the user's by default), where plans find them. What the file
    there has is settled. Raises FormatError for a damaged file."""

    def __init__(self, device: Device, folder: Path | None = None, seed: int = 0) -> None:
        self.context = Context(device, profiling=True)
        self.kernels = Kernels(self.context)
        self.rng = np.random.default_rng(seed)
        self.results = tuned.TuningResults(DeviceKind.of(device))
        self.path = tuned.path_of(self.results.kind, folder or tuned.user_folder())
        if self.path.exists():
            self.results = tuned.load(self.path)
        self.results.measured |= {"device": device.facts(), "date": datetime.date.today().isoformat()}

    def tune(
        self, works: Sequence[Work], minutes: float | None = None, again: bool = False, progress: Progress | None = None
    ) -> TuningReport:
        """Search what these workloads leave open, or with `again` all that they decide, for about `minutes`.
        `progress(part, names)` is told which part of the whole is done. What was found is kept at once; when
        interrupted, what is clear by then, and of the rest what was there before. Raises FormatError for a folder that
        can't be written."""
        rigs = [Rig(work, self.context, self.kernels) for work in works]
        settled = set(self.results.choices)
        if again:
            settled.difference_update(*(rig.decisions for rig in rigs))
        done = set() if again else set(self.results.workloads)
        todo = [r for r in rigs if r.work.name not in done or not set(r.decisions) <= settled]
        if todo:  # a folder that can't be written is an error before anything is measured
            tuned.save(self.results, self.path.parent)
        groups = groups_of(todo, settled)
        sizes = [group.seconds(sum(_rounds(group))) for group in groups]
        for index, group in enumerate(groups):

            def tell(part: float, index: int = index) -> None:
                if progress:
                    progress((sum(sizes[:index]) + part * sizes[index]) / sum(sizes), str(groups[index]))

            tell(0.0)
            self._search(group, (minutes or inf) * 60 * sizes[index] / sum(sizes), tell)
            self._compare(group)
            tuned.save(self.results, self.path.parent)
        return TuningReport(self.results, self.path, [work.name for work in works])

    def _search(self, group: Group, seconds: float, tell: Callable[[float], None]) -> None:
        races = {name: Race(decision) for name, decision in group.open.items()}
        rounds, start = _rounds(group), time.monotonic()
        done, interrupted = 0, True
        try:
            for (kept, _, part), count in zip(STAGES, rounds, strict=True):
                for race in races.values():
                    race.cut(kept, self.rng)
                for turn in range(count):
                    tell((done + turn) / sum(rounds))
                    if turn and time.monotonic() - start > part * seconds:
                        break
                    entrants = {name: race.entrant(turn) for name, race in races.items()}
                    picked = {name: races[name].decision.candidates[number] for name, number in entrants.items()}
                    spent = group.run(self.results.choices | picked)
                    for name, number in entrants.items():
                        races[name].add(number, spent[name])
                done += count
            interrupted = False
        finally:
            found = settle(races.values())
            if interrupted:  # what has not beaten the safe choice may do so yet
                found = {name: choice for name, choice in found.items() if choice != group.safe[name]}
            self.results.choices |= found
            tuned.save(self.results, self.path.parent)

    def _compare(self, group: Group) -> None:
        """Note how long steps take by the safe choices and by those found. Where they are no faster on the whole, what
        was found is not worth its kernels, and goes back to the safe choices."""
        choices = self.results.choices
        times = group.compare(choices)
        if sum(after / before for before, after in times.values()) >= len(times):
            choices |= {name: group.safe[name] for name in group.open}
        for rig in group.rigs:
            before, after = times[rig.work.name]
            changed = sum(choices[name] != group.safe[name] for name in rig.decisions)
            self.results.workloads[rig.work.name] = {
                "before": before, "after": after if changed else before, "decisions": len(rig.decisions),
                "changed": changed,
            }  # fmt: skip


def _rounds(group: Group) -> list[int]:
    """Turns of each stage until every candidate that is still in the race has had its own."""
    most = max((len(decision.candidates) for decision in group.open.values()), default=0)
    return [turns * (most if kept is None else min(most, kept + 1)) for kept, turns, _ in STAGES]


def tune(
    *plans: Plan, device: str | Device | None = None, again: bool = False, progress: Progress | None = None
) -> TuningReport:
    """Find the fastest way of computing the steps of `plans` (as `Model.plan` or `Model.phases` make them) on `device`,
    and keep it for the user: plans made from now on use it.

    Raises DeviceError for an unknown device, FormatError where results cannot be read or written.
    """
    return Tuner(choose_device(device).device).tune(works_of(plans), again=again, progress=progress)
