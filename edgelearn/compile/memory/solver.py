"""The planner's choice as an integer linear program.

A binary variable for each option of each activation says whether it is selected. Every tensor that is read, or needed
by a selected option, must have a selected option. That is the project selection behind checkpointing (T. Chen et al.
2016, arXiv 1604.06174) with more strategies, and for bytes stored it is exact. Bytes alive in the backward pass depend
on execution order; here, as in checkpointing by hand, each block is restored when the backward pass enters it, so for
the peak the program is a model, and the planner compares it with the real plan. HiGHS solves it (Q. Huangfu and J. Hall
2018, "Parallelizing the dual revised simplex method").
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from math import inf
from typing import Any, Literal

import numpy as np

from edgelearn.launch import Buffer

from .activation_memory import ActivationMemory
from .candidates import Activation, Candidates, Option

NODES = 1000  # of the search tree that HiGHS may visit: unlike a time limit, it gives the same result every time
GAP = 1e-3  # relative optimality gap: times are known no better
BYTES_GAP = 1e-4  # the same where bytes are minimised

Measure = Literal["stored", "live"]  # bytes held between the passes, or bytes alive at once in the backward pass


def solve(
    candidates: Candidates, stored: float = inf, live: float = inf, minimise: Measure | None = None
) -> ActivationMemory | None:
    """The fastest strategies within limits, or those of the fewest bytes.

    Arguments:
    - `stored`: most bytes held between the passes (default: no limit).
    - `live`: most bytes alive at once in the backward pass (default: no limit).
    - `minimise`: these bytes instead of the time; then the fastest of the smallest.

    Returns None if nothing fits, or nothing was found within NODES.
    """
    return _Program(candidates, minimise).solve(stored, live)


class _Program:
    """Variables are the options in order, then the most megabytes alive. Constraints are rows: coefficients by
    variable, and an upper bound."""

    def __init__(self, candidates: Candidates, minimise: Measure | None) -> None:
        self.candidates, self.minimise = candidates, minimise
        self.activations = list(candidates.activations.values())
        self.options = [(a, option) for a in self.activations for option in a.options]
        self.variables = {(a.buffer, option.strategy): i for i, (a, option) in enumerate(self.options)}
        self.peak = len(self.options)
        self.rows: list[dict[int, float]] = []
        self.bounds: list[float] = []

    def solve(self, stored: float, live: float) -> ActivationMemory | None:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self._add_dependencies()
        held = {i: option.held / 1e6 for i, (_, option) in enumerate(self.options) if option.held}
        if stored < inf:
            self._add(held, (stored - self.candidates.stored) / 1e6)
        if live < inf or self.minimise == "live":
            self._add_blocks()
        coefficients = [value for row in self.rows for value in row.values()]
        columns = [column for row in self.rows for column in row]
        starts = np.cumsum([0, *map(len, self.rows)])
        matrix = csr_array((coefficients, columns, starts), shape=(len(self.rows), self.peak + 1))
        bounds: Any = np.array(self.bounds)
        lower: Any = np.zeros(self.peak + 1)
        upper: Any = np.ones(self.peak + 1)
        upper[-1] = min(live, 1e15) / 1e6
        result = milp(
            self._objective(held),
            constraints=LinearConstraint(matrix, -np.inf, bounds),
            integrality=[1] * self.peak + [0],
            bounds=Bounds(lower, upper),
            options={"node_limit": NODES, "mip_rel_gap": GAP if self.minimise is None else BYTES_GAP},
        )
        if result.x is None:
            return None
        selected = [self.options[i] for i in np.flatnonzero(np.round(result.x[:-1]))]
        # Where bytes are minimised, several options of one tensor may be selected: the fastest is taken.
        selected.sort(key=lambda pair: (not _gives_values(pair[1]), pair[1].seconds))
        return self.candidates.activation_memory({a.buffer: option for a, option in reversed(selected)})

    def _objective(self, held: Mapping[int, float]) -> np.ndarray:
        """Milliseconds; where bytes are minimised, megabytes, and time breaks ties."""
        weights = np.array([1e3 * option.seconds for _, option in self.options] + [0.0])
        if self.minimise:
            weights *= 1e-3 / max(weights.sum(), 1e-9)
        if self.minimise == "live":
            weights[-1] = 1.0
        elif self.minimise == "stored":
            weights[list(held)] += list(held.values())
        return weights

    def _add(self, row: Mapping[int, float], bound: float) -> None:
        self.rows.append(dict(row))
        self.bounds.append(bound)

    def _any(self, activation: Activation, condition: Callable[[Option], bool]) -> dict[int, float]:
        """The options of an activation that meet a condition, to be selected at least once."""
        return {self.variables[activation.buffer, o.strategy]: -1.0 for o in activation.options if condition(o)}

    def _add_dependencies(self) -> None:
        """Tensors that the backward pass reads, and those that options need, must be available; inversion goes from
        stream to stream."""
        for a in self.activations:
            if a.is_read:
                self._add(self._any(a, _gives_values if a.values_read else _gives_mask), -1.0)
            for option in a.options:
                selected = {self.variables[a.buffer, option.strategy]: 1.0}
                for source in self._of(option.needs):
                    self._add(selected | self._any(source, _gives_values), 0.0)
                for stream in self._of(option.streams):
                    self._add(selected | self._any(stream, _is_available), 0.0)

    def _add_blocks(self) -> None:
        """Ends of blocks must be available, or recomputed from tensors that are; what is alive must fit the peak."""
        for end in self.candidates.block_ends:
            available = self._any(end, _is_available)
            needs = frozenset().union(*(option.needs for option in end.options if option.strategy.recomputes))
            for source in self._of(needs):
                self._add(available | self._any(source, _is_available), -1.0)
        for index, live in enumerate(self.candidates.live):
            row = {self.peak: -1.0}
            for variable, (a, option) in enumerate(self.options):
                nbytes = a.buffer.nbytes * (option.at <= index <= a.last)
                nbytes += option.held * (index <= option.at and option.at > 0)
                if nbytes:
                    row[variable] = nbytes / 1e6
            self._add(row, -live / 1e6)

    def _of(self, buffers: Container[Buffer]) -> list[Activation]:
        """In a fixed order, so that the result is the same every time."""
        return [a for a in self.activations if a.buffer in buffers]


def _gives_mask(option: Option) -> bool:
    return True


def _gives_values(option: Option) -> bool:
    return option.strategy.restores_values


def _is_available(option: Option) -> bool:
    """True if it gives values without recomputing."""
    return option.strategy.restores_values and not option.strategy.recomputes
