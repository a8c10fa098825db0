"""Prediction of process memory: by how much a process grows that trains or predicts by a plan.

The constants are of PoCL 3 on a CPU, whose device memory is memory of the process, with kernels that are in its cache.
They were fitted to the growth of processes over one that has the driver open; docs/results/memory.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgelearn.display import MB
from edgelearn.launch import Launch

DRIVER = 50_000_000  # opening PoCL and its compiler, once in a process: mostly pages of their libraries
PROGRAM = 400_000  # a program that PoCL has loaded
LAUNCH = 5_000  # objects of a launch: its plan, arguments and kernel
SEARCH = 45_000_000  # SciPy and its solver, once a budget made the planner search
FIT_COPIES = 3  # of the weights with Model.fit: the model's, and two while they are sent to the device
SESSION_COPIES = 2  # with a Session whose caller drops the weights


@dataclass(frozen=True)
class ProcessMemory:
    """Terms of the predicted growth of a process, in bytes. It prints as a table in MB.

    Arguments:
    - `device`: memory of the device, if it is the process's; 0 on a GPU.
    - `pages`: offloaded activations in the host's memory.
    - `programs`: compiled kernels as the driver holds them.
    - `launches`: objects of the plan's launches.
    - `weights`: copies of all weights on the host.
    - `search`: the solver, if a budget made the planner search.
    """

    device: int
    pages: int
    programs: int
    launches: int
    weights: int
    search: int

    @property
    def total(self) -> int:
        return self.device + self.pages + self.programs + self.launches + self.weights + self.search

    def __str__(self) -> str:
        terms = {
            "device memory": self.device, "offloaded pages": self.pages, "programs": self.programs,
            "launches": self.launches, "copies of weights": self.weights, "solver": self.search, "process": self.total,
        }  # fmt: skip
        return "\n".join(f"{size / MB:>9.2f} MB  {name}" for name, size in terms.items())


def predicted(
    device: int, pages: int, compiled: Iterable[Launch], launches: int, weights: int, searched: bool
) -> ProcessMemory:
    """The prediction from a plan's facts.

    Arguments:
    - `device`, `pages`, `weights`: bytes.
    - `compiled`: launches whose programs a session compiles at its start.
    - `launches`: number of launches of all programs.
    - `searched`: the planner searched for the plan in this process.
    """
    programs = {(run.source, run.kernel, run.macros, run.group) for run in compiled if run.source}
    return ProcessMemory(device, pages, PROGRAM * len(programs), LAUNCH * launches, weights, SEARCH if searched else 0)
