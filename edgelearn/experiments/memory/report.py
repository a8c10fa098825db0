"""What a comparison came to, as table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgelearn.lab.runs import figures

from .compare import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = ("lane", "stored MB", "paged MB", "peak MB", "planned", "allocated", "process", "ms a step", "of the first",
          "predicted ms")  # fmt: skip


def cells(found: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Rows of the table. A time has its middle half, and its ratio to the first lane, round by round."""
    return [_row(lane, found[0]) for lane in found]


def _row(lane: Measured, first: Measured) -> tuple[str, ...]:
    sizes = (lane.stored, lane.paged, lane.peak, lane.planned, lane.allocated, lane.process)
    low, high = lane.seconds.min() * 1e3, lane.seconds.max() * 1e3
    if len(lane.seconds) > 3:
        low, high = (1e3 * q for q in _quartiles(lane))
    ratio = sorted(lane.seconds / first.seconds)[len(lane.seconds) // 2]
    predicted = "–" if lane.predicted is None else f"{lane.predicted * 1e3:,.1f}"
    if lane.predicted is not None and lane.measured_costs < 0.5:
        predicted += " (roofline)"
    times = f"{lane.median * 1e3:,.1f} ({low:,.1f} – {high:,.1f})", f"{ratio:.2f}", predicted
    return lane.lane, *("–" if size is None else f"{size / 1e6:,.2f}" for size in sizes), *times


def _quartiles(lane: Measured) -> tuple[float, float]:
    ordered = sorted(lane.seconds)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def records(found: Sequence[Measured]) -> list[dict]:
    return [asdict(lane) | {"seconds": lane.seconds.tolist()} for lane in found]


def plot(found: Sequence[Measured]) -> Figure:
    """Time of a step over the bytes stored, a point a lane."""
    from matplotlib.figure import Figure

    figure = Figure((9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for lane in found:
        if lane.stored is not None:
            is_budget = lane.lane.endswith(("stored", "peak", "device"))
            axes.plot(lane.stored / 1e6, lane.median * 1e3, "o", color=figures.BLUE if is_budget else figures.ORANGE)
            axes.annotate(
                lane.lane, (lane.stored / 1e6, lane.median * 1e3), (5, 4), textcoords="offset points", fontsize=8
            )
    curve = sorted((x for x in found if x.lane.endswith("stored")), key=lambda lane: lane.stored)
    predicted = [lane.predicted * 1e3 for lane in curve]
    axes.plot([x.stored / 1e6 for x in curve], predicted, "--", color=figures.GRAY, label="budgets, as predicted")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("Stored between forward and backward pass (MB)", fontsize=11)
    axes.set_ylabel("A step (ms)", fontsize=11)
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=10)
    return figure
