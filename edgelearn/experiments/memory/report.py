"""A comparison of plans as table and chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgelearn.lab.runs import figures
from edgelearn.lab.statistics import compare as compare_times
from edgelearn.lab.statistics import quartiles

from .compare import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = ("plan", "stored MB", "paged MB", "peak MB", "planned", "allocated", "process", "ms a step", "of the first",
          "predicted ms")  # fmt: skip


def cells(measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Rows of the table. A time has its quartiles, and its ratio to the first plan's, round by round."""
    return [_row(one, measured[0]) for one in measured]


def _row(one: Measured, first: Measured) -> tuple[str, ...]:
    sizes = (one.stored, one.paged, one.peak, one.planned, one.allocated, one.process)
    low, middle, high = (1e3 * seconds for seconds in quartiles(one.seconds))
    ratio = "1" if one is first else str(compare_times(one.seconds, first.seconds))
    predicted = "–" if one.predicted is None else f"{one.predicted * 1e3:,.1f}"
    if one.measured_launches is not None and one.measured_launches < 0.5:
        predicted += " (roofline)"
    times = f"{middle:,.1f} ({low:,.1f} – {high:,.1f})", ratio, predicted
    return one.plan, *("–" if size is None else f"{size / 1e6:,.2f}" for size in sizes), *times


def records(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The measurements as JSON values."""
    return [asdict(one) | {"seconds": one.seconds.tolist()} for one in measured]


def plot(measured: Sequence[Measured]) -> Figure:
    """Time of a step over the bytes stored, a point a plan."""
    figure = figures.canvas(9, 4.5)
    axes = figure.add_subplot()
    points = [(one, one.stored / 1e6, one.median * 1e3) for one in measured if one.stored is not None]
    for one, *place in points:
        is_budget = one.plan.endswith(("stored", "peak", "device"))
        axes.plot(*place, "o", color=figures.BLUE if is_budget else figures.ORANGE)
        axes.annotate(one.plan, (place[0], place[1]), (5, 4), textcoords="offset points", fontsize=8)
    curve = sorted((size, 1e3 * (one.predicted or 0)) for one, size, _ in points if one.plan.endswith("stored"))
    sizes, times = [size for size, _ in curve], [time for _, time in curve]
    axes.plot(sizes, times, "--", color=figures.GRAY, label="budgets, as predicted")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("Stored between forward and backward pass (MB)", fontsize=11)
    axes.set_ylabel("A step (ms)", fontsize=11)
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=10)
    return figure
