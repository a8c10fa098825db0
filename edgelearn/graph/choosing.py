"""The fastest choice of ways back within limits, as a linear program with whole numbers.

For each item three numbers of 0 or 1 say whether it is kept, recomputed or inverted; what the backward pass reads, and
what is needed to make what is made, must be one of them. That is the project selection behind checkpointing (T. Chen et
al. 2016, arXiv 1604.06174) with inverses, and for bytes stored it is exact. What is alive at once in the backward pass
depends on when what is made; here, as in checkpointing by hand, each block is brought back by itself when the backward
pass enters it, so for the peak the program is a model, which the planner holds against the real plan. HiGHS solves it
(Q. Huangfu and J. Hall 2018, "Parallelizing the dual revised simplex method").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import numpy as np

from .choices import Choices, Item
from .saving import Saving

SECONDS = 3.0  # that HiGHS may take; the best found by then is used
KEPT, MADE, INVERTED = range(3)


def choose(choices: Choices, stored: float = inf, live: float = inf, least: str | None = None) -> Saving | None:
    """The fastest choice with at most `stored` bytes between the passes and at most `live` bytes at once in the
    backward pass; or with the `least` "stored" or "live" bytes. None where nothing fits."""
    return _Program(choices, least).solved(stored, live)


class _Program:
    def __init__(self, choices: Choices, least: str | None) -> None:
        self.choices, self.least = choices, least
        self.items = list(choices.items.values())
        self.number = {item.buffer: i for i, item in enumerate(self.items)}
        self.size = 3 * len(self.items) + 1  # the last is the most that is alive at once, in MB
        self.rows: list[dict[int, float]] = []
        self.upper: list[float] = []

    def solved(self, stored: float, live: float) -> Saving | None:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self._needs()
        kept = {self._of(item, KEPT): item.buffer.nbytes / 1e6 for item in self.items}
        if stored < inf:
            self._at_most(kept, (stored - self.choices.stored) / 1e6)
        if live < inf or self.least == "live":
            self._blocks()
        data = [value for row in self.rows for value in row.values()]
        columns = [column for row in self.rows for column in row]
        starts = np.cumsum([0, *map(len, self.rows)])
        matrix = csr_array((data, columns, starts), shape=(len(self.rows), self.size))
        upper = np.ones(self.size)
        upper[-1] = min(live, 1e15) / 1e6
        for item in self.items:
            upper[self._of(item, KEPT)] = item.can_be_kept
            upper[self._of(item, MADE)] = item.seconds is not None
            upper[self._of(item, INVERTED)] = item.inverse is not None
        done = milp(
            self._objective(kept),
            constraints=LinearConstraint(matrix, -np.inf, self.upper),
            integrality=[1] * (self.size - 1) + [0],
            bounds=Bounds(0, upper),
            options={"time_limit": SECONDS, "mip_rel_gap": 1e-4},
        )
        if done.x is None:
            return None
        chosen = [np.flatnonzero(np.round(done.x[way:-1:3])) for way in range(3)]
        return self.choices.saving(*({self.items[i].buffer for i in chosen[way]} for way in (KEPT, INVERTED)))

    def _objective(self, kept: Mapping[int, float]) -> np.ndarray:
        """Milliseconds; where memory is what counts, these break ties."""
        found = np.zeros(self.size)
        for item in self.items:
            found[self._of(item, MADE)] = 1e3 * (item.seconds or 0)
            found[self._of(item, INVERTED)] = 1e3 * item.inverse.seconds if item.inverse else 0
        if self.least:
            found *= 1e-3 / max(found.sum(), 1e-9)
        if self.least == "live":
            found[-1] = 1.0
        elif self.least == "stored":
            found[list(kept)] += list(kept.values())
        return found

    def _of(self, item: Item, way: int) -> int:
        return 3 * self.number[item.buffer] + way

    def _there(self, item: Item, *ways: int) -> dict[int, float]:
        return {self._of(item, way): -1.0 for way in ways}

    def _at_most(self, row: Mapping[int, float], most: float) -> None:
        self.rows.append(dict(row))
        self.upper.append(most)

    def _implies(self, given: Mapping[int, float], one_of: Mapping[int, float]) -> None:
        self._at_most({**one_of, **given}, 0.0)

    def _needs(self) -> None:
        """What is read is there, and what makes it; and inversion goes from stream to stream."""
        for item in self.items:
            if item.is_read:
                self._at_most(self._there(item, KEPT, MADE, INVERTED), -1.0)
            for other in self._items(item.needs):
                self._implies({self._of(item, MADE): 1.0}, self._there(other, KEPT, MADE, INVERTED))
            if item.inverse:
                inverted = {self._of(item, INVERTED): 1.0}
                for other in self._items(item.inverse.needs):
                    self._implies(inverted, self._there(other, KEPT, MADE, INVERTED))
                for other in self._items(item.inverse.streams):
                    self._implies(inverted, self._there(other, KEPT, INVERTED))

    def _blocks(self) -> None:
        """What blocks end with is there, or made at once of what is; and what is alive has room."""
        for end in self.choices.ends:
            there = self._there(end, KEPT, INVERTED)
            for other in self._items(end.needs):
                self._at_most(there | self._there(other, KEPT, INVERTED), -1.0)
        for place, live in enumerate(self.choices.live):
            row = {self.size - 1: -1.0}
            for item in self.items:
                if place <= item.last:
                    nbytes = item.buffer.nbytes / 1e6
                    row[self._of(item, KEPT)] = nbytes
                    if place >= item.entry:
                        row[self._of(item, MADE)] = nbytes
                    if item.inverse and place >= item.inverse.at:
                        row[self._of(item, INVERTED)] = nbytes
            self._at_most(row, -live / 1e6)

    def _items(self, buffers: Iterable) -> list[Item]:
        return [self.choices.items[buffer] for buffer in buffers]
