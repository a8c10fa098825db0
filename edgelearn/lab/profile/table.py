"""Rooflines and projections as text."""

from __future__ import annotations

from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING

from edgelearn.lab.runs.tables import render
from edgelearn.units import MB

from .projection import ASSUMPTIONS, Estimate, Projection
from .roofline import Point, Roofline

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("n", "MFLOP", "MB", "FLOP/B", "ms", "share", "GFLOP/s", "GB/s", "of roof")


def roofline_table(roofline: Roofline, width: int = 120, layers: bool = False) -> str:
    """A roofline by kind of launch, or by layer, as text `width` characters wide."""
    return f"{_head(roofline)}\n{render([_launches(roofline, layers)], width)}"


def projection_table(projection: Projection, width: int = 120) -> str:
    """Estimates, their assumptions and the errors on measured devices, as text `width` characters wide."""
    parts = [f"{projection.name}, predicted", render([_estimates(projection)], width)]
    parts += ["\n".join(wrap(f"Assumed: {'; '.join(ASSUMPTIONS)}.", width)), ""]
    if projection.errors:
        off = median(abs(error) for errors in projection.errors.values() for error in errors.values())
        parts += [f"Error on measured devices, each predicted from the others: {off:.0%} in the median"]
        parts += [render([_errors(projection)], width)]
    return "\n".join(parts)


def _head(roofline: Roofline) -> str:
    """The step and the device in a few lines."""
    peaks, total = roofline.peaks, roofline.total
    rest = roofline.wall - roofline.busy
    return (
        f"{roofline.name} on {roofline.device.id}, median of {roofline.timing.rounds} steps: "
        f"{roofline.wall * 1e3:.2f} ms\n"
        f"{total.launches} launches take {roofline.busy * 1e3:.2f} ms; {rest * 1e3:.2f} ms pass between them, in "
        f"transfers and on the host\n"
        f"at best: {peaks.flops / 1e9:,.0f} GFLOP/s, {peaks.memory / 1e9:,.0f} GB/s from memory, "
        f"{peaks.cache / 1e9:,.0f} GB/s from cache, {peaks.launch * 1e6:.1f} µs a launch"
    )


def _launches(roofline: Roofline, layers: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    points = roofline.by_layer() if layers else roofline.by_kind()
    table.add_column("layer" if layers else "kind of launch", min_width=max(len(point.name) for point in points))
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        table.add_row(Text(point.name), *_row(point, roofline.busy))
    table.add_section()
    table.add_row("all", *_row(roofline.total, roofline.busy))
    return table


def _row(point: Point, busy: float) -> list[str]:
    linear = point.flops > 0
    return [
        str(point.launches),
        f"{point.flops / 1e6:,.1f}" if linear else "–",
        f"{point.nbytes / MB:,.2f}",
        f"{point.intensity:,.1f}" if linear else "–",
        f"{point.seconds * 1e3:,.3f}",
        f"{point.seconds / busy:.1%}",
        f"{point.flops / point.seconds / 1e9:,.0f}" if linear else "–",
        f"{point.nbytes / point.seconds / 1e9:,.1f}",
        f"{point.efficiency:.0%}",
    ]


def _estimates(projection: Projection) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("device")
    table.add_column("precision")
    table.add_column("efficiency of")
    for heading in ("n", "bound ms", "expected ms", "memory MB", "fits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for e in projection.estimates:
        figures = (f"{e.bound * 1e3:,.1f}", f"{e.expected * 1e3:,.1f}", f"{e.nbytes / MB:,.1f}")
        table.add_row(e.device.name, e.precision, e.basis, str(e.launches), *figures, _fits(e))
    return table


def _fits(estimate: Estimate) -> str:
    return "yes" if estimate.fits else f"does not fit {estimate.device.memory / MB:,.0f} MB"


def _errors(projection: Projection) -> Table:
    """A row for each measured device, a column for each step."""
    from rich import box
    from rich.table import Table

    errors, dates = projection.errors, {record.name: record.date for record in projection.records}
    names = list(dict.fromkeys(step for steps in errors.values() for step in steps))
    table = Table(box=box.SIMPLE)
    table.add_column("measured device")
    table.add_column("on")
    for step in names:
        table.add_column(step, justify="right", no_wrap=True)
    for device, by_step in errors.items():
        table.add_row(device, dates[device], *(f"{by_step[step]:+.0%}" if step in by_step else "–" for step in names))
    return table
