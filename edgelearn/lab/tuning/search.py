"""The search: every decision of a step gets one of its candidates, the step runs whole, and each decision is charged
with its own launches' time. Then the candidates rotate; the slow ones drop out, as in successive halving (Jamieson and
Talwalkar 2016, arXiv 1502.07943). Candidates of a decision that several workloads have run in all of them, and their
times are added."""

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

# Candidates that stay besides the safe one (at first all), turns of each, and the part of a workload's time by which
# the stage ends: candidates without a turn by then drop out.
STAGES = ((None, 1, 0.6), (5, 2, 0.8), (2, 4, 1.0))

Progress = Callable[[float, str], None]


@dataclass
class TuningReport:
    """Result of a search.

    Arguments:
    - `results`: the choices, as saved.
    - `path`: the file that holds them.
    - `names`: of the workloads that were requested.
    """

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
    """Tunes a device.

    Arguments:
    - `device`: the device.
    - `folder`: where results are stored (default: the user's folder, where plans find them). Decisions in the file
      there are settled.
    - `seed`: draws the order of candidates.

    Raises FormatError for a damaged file.
    """

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
        """Search the decisions of workloads that aren't settled yet. Results are saved as they come; an interrupted
        search saves the decisions that are clear by then, and leaves the others as they were.

        Arguments:
        - `minutes`: about how long to search (default: until all candidates are measured).
        - `again`: search settled decisions, too.
        - `progress`: called with the part that is done, 0 to 1, and the names of the workloads at hand.

        Raises FormatError for a folder that can't be written.
        """
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

            def report(part: float, index: int = index) -> None:
                if progress:
                    progress((sum(sizes[:index]) + part * sizes[index]) / sum(sizes), str(groups[index]))

            report(0.0)
            self._search(group, (minutes or inf) * 60 * sizes[index] / sum(sizes), report)
            self._compare(group)
            tuned.save(self.results, self.path.parent)
        return TuningReport(self.results, self.path, [work.name for work in works])

    def _search(self, group: Group, seconds: float, report: Callable[[float], None]) -> None:
        races = {name: Race(decision) for name, decision in group.open.items()}
        rounds, start = _rounds(group), time.monotonic()
        done, interrupted = 0, True
        try:
            for (kept, _, part), count in zip(STAGES, rounds, strict=True):
                for race in races.values():
                    race.cut(kept, self.rng)
                for turn in range(count):
                    report((done + turn) / sum(rounds))
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
            settled = settle(races.values())
            if interrupted:  # candidates that haven't beaten the safe choice yet may still do so
                settled = {name: choice for name, choice in settled.items() if choice != group.safe[name]}
            self.results.choices |= settled
            tuned.save(self.results, self.path.parent)

    def _compare(self, group: Group) -> None:
        """Record the times of steps with the safe and with the new choices. If steps are no faster on the whole,
        go back to the safe choices: the new ones aren't worth their kernels."""
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
    """Find the fastest kernels for the steps of some plans, and store them: plans made from now on use them.

    Arguments:
    - `plans`: as `Model.plan` or `Model.phases` make them.
    - `device`: a device or part of its name (default: the best one).
    - `again`: measure settled decisions, too.
    - `progress`: called with the part that is done, 0 to 1, and the names of the workloads at hand.

    Raises DeviceError for an unknown device, FormatError where results cannot be read or written.
    """
    return Tuner(choose_device(device).device).tune(works_of(plans), again=again, progress=progress)
