"""A report as a chart: the time of every variant over the subject's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgelearn import atomic
from edgelearn.errors import DataError
from edgelearn.lab.measure import compare
from edgelearn.lab.runs.figures import BLUE, GRAY, ORANGE, to_png

from .report import BenchReport
from .table import milliseconds
from .variant import Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE, TITLE = 0.24, 0.55  # inches


def draw(report: BenchReport) -> Figure:
    """A panel a workload, a line a variant: its time over that of the subject's fastest variant (or of the fastest of
    all) in the same rounds, on a logarithmic axis. A dot is the median, a bar goes from quartile to quartile; a ratio
    that is refused has no dot.

    Raises DataError if nothing was measured.
    """
    from matplotlib.figure import Figure

    panels = [(workload, variants) for workload in report.workloads if (variants := _variants(report, workload))]
    if not panels:
        raise DataError("There is nothing to draw: no contender was measured. The report's table says why.")
    heights = [len(variants) * LINE + TITLE for _, variants in panels]
    figure = Figure(figsize=(9, sum(heights) + 0.5), layout="constrained", facecolor="white")
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (workload, variants) in zip(grid, panels, strict=True):
        _panel(axes, report, workload, variants)
    grid[-1].set_xlabel(f"time / {report.subject}'s (less is faster)")
    return figure


def save(report: BenchReport, path: Path | str) -> None:
    """Write the chart as a PNG. Raises RunError if that can't be done, DataError if nothing was measured."""
    atomic.write_bytes(path, to_png(draw(report)))


def _variants(report: BenchReport, workload: str) -> list[Variant]:
    return [variant for variant in report.of(workload) if variant.measured and report.agrees(variant)]


def _panel(axes: Axes, report: BenchReport, workload: str, variants: list[Variant]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    reference = report.best(workload, report.subject) or variants[0]
    for place, variant in enumerate(variants):
        color = BLUE if variant.contender == report.subject else ORANGE
        if variant is reference:
            axes.plot(1, place, "D", color=color)
            continue
        found = compare(variant.seconds, reference.seconds)
        axes.plot((found.low, found.high), (place, place), color=GRAY if found.refusal else color, linewidth=3)
        if not found.refusal:
            axes.plot(found.ratio, place, "o", color=color)
    axes.axvline(1, color=GRAY, linewidth=1, zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(2, subs=(1, 1.5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(
        range(len(variants)),
        [f"{variant.label}: {milliseconds(variant.median)} ms" for variant in variants],
        fontsize=9,
    )
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_title(workload, fontsize=11, loc="left")
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
