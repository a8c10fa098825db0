"""A race between the candidates of a decision."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from edgelearn.lab.measure import quartiles
from edgelearn.launch import Decision, KernelConfig

EQUAL = 0.02  # candidates whose times differ by less are as good
FEWEST = 3  # samples of a candidate that may win


@dataclass
class Race:
    """Times of the candidates of a decision, by their number in it, one a turn. `running` are still measured. The first
    candidate, which is the safe one, is measured to the end: to win, another one has to beat it."""

    decision: Decision
    samples: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = list(range(len(self.decision.candidates)))

    def entrant(self, turn: int) -> int:
        return self.running[turn % len(self.running)]

    def add(self, number: int, nanoseconds: float) -> None:
        self.samples.setdefault(number, []).append(nanoseconds)

    def cut(self, keep: int | None, rng: np.random.Generator) -> None:
        """Go on with the safe candidate and the fastest `keep` others (all where None), in a new order."""
        others = sorted((n for n in self.running if n), key=self.time)[:keep]
        self.running = [int(n) for n in rng.permutation([0, *others])]

    def time(self, number: int) -> float:
        """Median of the samples; infinite where there are none."""
        return median(self.samples.get(number, [float("inf")]))

    def spread(self, number: int) -> float:
        """Uncertainty of `time`: half of the distance between the quartiles."""
        low, _, high = quartiles(self.samples[number])
        return (high - low) / 2

    def winners(self) -> list[int]:
        """Candidates as good as the fastest, that one first; the safe one alone if it is among them, if the fastest
        doesn't beat it by more than the spread of both, or was measured too seldom."""
        fastest = min(self.running, key=self.time)
        as_good = sorted((n for n in self.running if self.time(n) <= self.time(fastest) * (1 + EQUAL)), key=self.time)
        if 0 in as_good or any(len(self.samples.get(n, [])) < FEWEST for n in (0, fastest)):
            return [0]
        if self.time(fastest) + self.spread(fastest) >= self.time(0) - self.spread(0):
            return [0]
        return as_good


def settle(races: Iterable[Race]) -> dict[str, KernelConfig]:
    """The chosen candidate by name of the decision. Among candidates as good as the fastest, the one that other
    decisions of the same kernel spend most time in: fewer kernels compile faster, and fit into a driver's cache."""
    used: dict[tuple[str, str], float] = defaultdict(float)
    settled = {}
    for race in sorted((race for race in races if race.samples), key=lambda race: -race.time(0)):
        name, candidates = race.decision.name, race.decision.candidates
        kernel = name.split()[0]
        key = {n: (kernel, json.dumps(candidates[n], sort_keys=True)) for n in race.winners()}
        best = max(key, key=lambda n: used[key[n]])  # the fastest of equals: max takes the first
        used[key[best]] += race.time(best)
        settled[name] = candidates[best]
    return settled
