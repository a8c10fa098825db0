"""Backpropagation through time: memory against time over the number of steps, by plan and by budget.

    edgelearn memory through-time

Guide: docs/guides/sequences.md. Figures: docs/results/sequences.md.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.compile import Plan, account
from edgelearn.device import Device
from edgelearn.display import plural
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.lab.runs import figures
from edgelearn.ops import LSTM, Dense, pack
from edgelearn.runtime import choose_device
from edgelearn.runtime.context import Context
from edgelearn.runtime.kernels import Kernels
from edgelearn.runtime.session import Session
from edgelearn.tables import Table, Tabular

from .experiment import Log, silent
from .memory_plans import named_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHANNELS, CLASSES = 9, 5
STEPS = (16, 32, 64, 128, 256)
SHARES = (0.75, 0.5, 0.25)  # budgets for stored activations, of what keeping all takes
POLICIES = ("keep_all", "checkpoints", "square_root")


@dataclass(frozen=True)
class StepsResult:
    """A plan of a network over a number of steps.

    Arguments:
    - `steps`: of a sequence. `plan`: a policy, or a budget as a share of what `keep_all` stores.
    - `stored`: bytes stored between the passes. `planned`: all device memory, bytes.
    - `launches`: of an update.
    - `seconds`: of an update, the fastest one: other programs only add to it.
    - `same_bits`: the gradients have the same bits as those of `keep_all`.
    """

    steps: int
    plan: str
    stored: int
    planned: int
    launches: int
    seconds: float
    same_bits: bool


@dataclass(frozen=True, repr=False)
class ThroughTime(Tabular):
    """Plans of one recurrent layer over numbers of steps.

    Arguments:
    - `units`, `examples`: of the LSTM, and of a batch.
    - `device`: name.
    - `rows`: a result for each number of steps and plan.
    """

    units: int
    examples: int
    device: str
    rows: Sequence[StepsResult]

    @property
    def headline(self) -> str:
        same = sum(row.same_bits for row in self.rows)
        return f"of LSTM({self.units}): {len(self.rows)} plans, the gradients of {same} have the same bits"

    def table(self) -> Table:
        """A row for each number of steps and plan."""
        firsts = {row.steps: row for row in self.rows if row.plan == "keep_all"}
        rows = [
            (str(row.steps), row.plan, f"{row.stored:,}", f"{row.planned:,}", f"{row.launches:,}",
             f"{1e3 * row.seconds:.2f}", f"{row.seconds / firsts[row.steps].seconds:.2f}",
             "yes" if row.same_bits else "no")
            for row in self.rows
        ]  # fmt: skip
        header = ("steps", "plan", "stored", "planned", "launches", "ms", "times", "same bits")
        title = f"LSTM({self.units}) over (steps, {CHANNELS}), batches of {self.examples}, on {self.device}"
        notes = ["stored, planned: bytes. times: of the update's time with keep_all, in turn with it."]
        return Table(header, rows, title, notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "units": self.units, "examples": self.examples, "device": self.device,
            "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw stored bytes over the steps by plan, and memory against time; write a PNG to `path`."""
        figure = figures.canvas(figures.WIDTH, 4)
        left, right = figure.subplots(1, 2)
        for number, plan in enumerate(dict.fromkeys(row.plan for row in self.rows)):
            rows = [row for row in self.rows if row.plan == plan]
            left.plot([row.steps for row in rows], [row.stored / 1e3 for row in rows], label=plan,
                      **figures.look(number))  # pyright: ignore  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_formatter("{x:g}")
        left.legend(fontsize=9, frameon=False)
        figures.style(left, "Stored over steps", "Steps", "Stored (kB)")
        for number, steps in enumerate(dict.fromkeys(row.steps for row in self.rows)):
            rows = sorted((row for row in self.rows if row.steps == steps), key=lambda row: row.stored)
            first = next(row for row in rows if row.plan == "keep_all")
            right.plot([row.stored / first.stored for row in rows], [row.seconds / first.seconds for row in rows],
                       label=plural(steps, "step"), **figures.look(number))  # pyright: ignore  # fmt: skip
        right.legend(fontsize=9, frameon=False)
        figures.style(right, "Time against memory", "Stored, of keep_all's", "Time, of keep_all's")
        return figures.saved(figure, path)


def recurrent_network(steps: int, units: int) -> Network:
    """An LSTM over (steps, 9), and logits of 5 classes."""
    network = Network(f"lstm_{steps}", (steps, CHANNELS))
    network.add("lstm", LSTM(units))
    network.add("dense", Dense(CLASSES))
    return network


def plans_of(network: Network, device: Device, examples: int, shares: Sequence[float] = SHARES) -> dict[str, Plan]:
    """Plans by policy, and within `shares` of what the first stores; a budget that nothing fits is left out."""
    plans = {name: named_plan(name, network, device, examples) for name in POLICIES}
    most = account(plans["keep_all"]).stored
    for share in shares:
        try:
            plans[f"{share:.0%}"] = named_plan(f"{int(share * most)} B stored", network, device, examples)
        except PlanError:
            continue
    return plans


def through_time(
    steps: Sequence[int] = STEPS, units: int = 32, examples: int = 12, rounds: int = 9, device: str | None = None,
    log: Log = silent,
) -> ThroughTime:  # fmt: skip
    """Plan an update of an LSTM over numbers of steps, by policies and budgets, and measure them in turn.

    Arguments:
    - `steps`: lengths of a sequence (default 16 to 256).
    - `units`: of the LSTM (default 32). `examples`: of a batch (default 12).
    - `rounds`: updates of each plan that are timed (default 9).
    - `device`: part of a device's name (default: the best one).
    - `log`: takes lines of text (default: none).
    """
    chosen = choose_device(device).device
    rows = []
    for length in steps:
        log(plural(length, "step"))
        rows += _measured(length, units, examples, rounds, chosen)
    return ThroughTime(units, examples, chosen.id, rows)


def _measured(length: int, units: int, examples: int, rounds: int, device: Device) -> list[StepsResult]:
    network, rng = recurrent_network(length, units), np.random.default_rng(0)
    x = rng.standard_normal((examples, length, CHANNELS)).astype(np.float32)
    labels = rng.integers(0, CLASSES, examples).astype(np.int32)
    plans = plans_of(network, device, examples)
    context = Context(device)
    kernels = Kernels(context)
    sessions = {name: Session(plan, context, kernels) for name, plan in plans.items()}
    updates = {name: _update(session, plans[name], network, x, labels) for name, session in sessions.items()}
    gradients = {}
    for name, update in updates.items():
        update()
        gradients[name] = sessions[name].gradients()
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(rounds):
        for name, update in updates.items():
            begin = time.perf_counter()
            update()
            seconds[name].append(time.perf_counter() - begin)
    for session in sessions.values():
        session.close()
    found = []
    for name, plan in plans.items():
        same = all(np.array_equal(gradients[name][each], first) for each, first in gradients["keep_all"].items())
        found.append(
            StepsResult(
                length, name, account(plan).stored, plan.peak_bytes, len(plan.step_launches), min(seconds[name]), same
            )
        )
    return found


def _update(session: Session, plan: Plan, network: Network, x: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """An update at learning rate 0, which returns its loss."""
    session.load(network.initialize(0))
    packed, steps = pack(x, plan.storage.input.block), itertools.count(1)
    return lambda: session.train([(packed, labels)], len(x), 0.0, next(steps))[0]
