"""Candidates of a decision against each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from edgelearn.launch import Decision, KernelConfig

EQUAL = 0.02  # candidates whose times differ by less are as good
FEWEST = 3  # samples of a candidate that may win


@dataclass
class Race:
    """Samples of the candidates' times, by their number in the decision, one a turn; `running` are still measured. The
    first candidate, which is the safe one, is measured to the end: to win, another one has to beat it."""

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
        """By how much `time` may be off: half of the range in which the middle half of the samples lies."""
        low, high = np.quantile(self.samples[number], (0.25, 0.75))
        return float(high - low) / 2

    def winners(self) -> list[int]:
        """Candidates that are as good as the fastest, that one first. The safe one alone where it is among them, where
        the fastest does not beat it by more than the spread of both, or was not measured often enough to say."""
        fastest = min(self.running, key=self.time)
        as_good = sorted((n for n in self.running if self.time(n) <= self.time(fastest) * (1 + EQUAL)), key=self.time)
        if 0 in as_good or any(len(self.samples.get(n, [])) < FEWEST for n in (0, fastest)):
            return [0]
        if self.time(fastest) + self.spread(fastest) >= self.time(0) - self.spread(0):
            return [0]
        return as_good


def settle(races: Iterable[Race]) -> dict[str, KernelConfig]:
    """The choice of each decision by name. Among candidates as good as the fastest, the one that most of the kernel's
    time goes through already: fewer kernels are faster to compile, and fit into a driver's cache."""
    used: Counter[tuple[str, str]] = Counter()
    found = {}
    for race in sorted((race for race in races if race.samples), key=lambda race: -race.time(0)):
        name, candidates = race.decision.name, race.decision.candidates
        kernel = name.split()[0]
        key = {n: (kernel, json.dumps(candidates[n], sort_keys=True)) for n in race.winners()}
        best = max(key, key=lambda n: used[key[n]])  # the fastest of equals: max takes the first
        used[key[best]] += race.time(best)
        found[name] = candidates[best]
    return found
