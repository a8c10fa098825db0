"""The fastest choice of ways back within limits, as a linear program with whole numbers.

For each option of each item a number of 0 or 1 says whether it is taken; of what the backward pass reads, and of what
is needed to make what is made, one must be. That is the project selection behind checkpointing (T. Chen et al. 2016,
arXiv 1604.06174) with other ways back beside, and for bytes stored it is exact. What is alive at once in the backward
pass depends on when what is made; here, as in checkpointing by hand, each block is brought back by itself when the
backward pass enters it, so for the peak the program is a model, which the planner holds against the real plan. HiGHS
solves it (Q. Huangfu and J. Hall 2018, "Parallelizing the dual revised simplex method").
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from math import inf

import numpy as np

from edgelearn.launch import Buffer

from .activation_memory import ActivationMemory
from .candidates import Candidates, Item, Option

NODES = 1000  # of its search tree that HiGHS may look at; unlike a time limit, always with the same result
GAP = 1e-3  # how much longer than the best choice's one may take: costs are known no better
LEAST_GAP = 1e-4  # the same of the least bytes


def choose(
    choices: Candidates, stored: float = inf, live: float = inf, least: str | None = None
) -> ActivationMemory | None:
    """The fastest choice with at most `stored` bytes between the passes and at most `live` bytes at once in the
    backward pass; or with the `least` "stored" or "live" bytes. None where nothing fits, or within NODES."""
    return _Program(choices, least).solved(stored, live)


class _Program:
    def __init__(self, choices: Candidates, least: str | None) -> None:
        self.choices, self.least = choices, least
        self.items = list(choices.items.values())
        self.options = [(item, option) for item in self.items for option in item.options]
        self.numbers = {(item.buffer, option.way): i for i, (item, option) in enumerate(self.options)}
        self.size = len(self.options) + 1  # the last is the most that is alive at once, in MB
        self.rows: list[dict[int, float]] = []
        self.upper: list[float] = []

    def solved(self, stored: float, live: float) -> ActivationMemory | None:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self._needs()
        kept = {i: option.stored / 1e6 for i, (_, option) in enumerate(self.options) if option.stored}
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
        done = milp(
            self._objective(kept),
            constraints=LinearConstraint(matrix, -np.inf, self.upper),
            integrality=[1] * (self.size - 1) + [0],
            bounds=Bounds(0, upper),
            options={"node_limit": NODES, "mip_rel_gap": GAP if self.least is None else LEAST_GAP},
        )
        if done.x is None:
            return None
        return self.choices.activation_memory(self._chosen(np.flatnonzero(np.round(done.x[:-1]))))

    def _chosen(self, numbers: Iterable[int]) -> dict:
        """Of several ways back for an item, which cost nothing more where memory is what counts, the fastest."""
        taken = sorted((self.options[i] for i in numbers), key=lambda pair: (pair[1].masks, pair[1].seconds))
        return {item.buffer: option for item, option in reversed(taken)}

    def _objective(self, kept: Mapping[int, float]) -> np.ndarray:
        """Milliseconds; where memory is what counts, these break ties."""
        found = np.array([1e3 * option.seconds for _, option in self.options] + [0.0])
        if self.least:
            found *= 1e-3 / max(found.sum(), 1e-9)
        if self.least == "live":
            found[-1] = 1.0
        elif self.least == "stored":
            found[list(kept)] += list(kept.values())
        return found

    def _one_of(self, item: Item, which: Callable[[Option], bool]) -> dict[int, float]:
        return {self.numbers[item.buffer, option.way]: -1.0 for option in item.options if which(option)}

    def _at_most(self, row: Mapping[int, float], most: float) -> None:
        self.rows.append(dict(row))
        self.upper.append(most)

    def _needs(self) -> None:
        """What is read is there, and what makes it; and inversion goes from stream to stream."""
        for item in self.items:
            if item.reads or item.mask:
                self._at_most(self._one_of(item, _gives_values if item.reads else _gives_a_mask), -1.0)
            for option in item.options:
                taken = {self.numbers[item.buffer, option.way]: 1.0}
                for other in self._items(option.needs):
                    self._at_most(taken | self._one_of(other, _gives_values), 0.0)
                for other in self._items(option.streams):
                    self._at_most(taken | self._one_of(other, _is_there), 0.0)

    def _blocks(self) -> None:
        """What blocks end with is there, or made at once of what is; and what is alive has room."""
        for end in self.choices.ends:
            there = self._one_of(end, _is_there)
            needs = frozenset().union(*(option.needs for option in end.options if option.recomputes))
            for needed in self._items(needs):
                self._at_most(there | self._one_of(needed, _is_there), -1.0)
        for place, live in enumerate(self.choices.live):
            row = {self.size - 1: -1.0}
            for number, (item, option) in enumerate(self.options):
                whole = option.at <= place <= item.last
                nbytes = item.buffer.nbytes * whole + option.stored * (place <= option.at and option.at > 0)
                if nbytes:
                    row[number] = nbytes / 1e6
            self._at_most(row, -live / 1e6)

    def _items(self, buffers: Container[Buffer]) -> list[Item]:
        """In an order that is the same every time, since so is then what the solver finds."""
        return [item for item in self.items if item.buffer in buffers]


def _gives_a_mask(option: Option) -> bool:
    return True


def _gives_values(option: Option) -> bool:
    return not option.masks


def _is_there(option: Option) -> bool:
    """Values, without recomputing."""
    return not option.masks and not option.recomputes
