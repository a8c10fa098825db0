"""Rooflines and projections as text."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from edgelearn.lab.measure import REMEDY
from edgelearn.lab.runs.tables import render, table
from edgelearn.units import MB

from .peaks import Peaks
from .projection import ASSUMPTIONS, Estimate, Projection
from .roofline import Point, Roofline

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("n", "MFLOP", "MB", "FLOP/B", "ms", "share", "GFLOP/s", "GB/s", "of roof")
OPTIONAL = ("FLOP/B", "MB", "MFLOP", "GB/s")  # left out in this order where a line is too short


def roofline_table(roofline: Roofline, width: int = 120, layers: bool = False) -> str:
    """A roofline by kind of launch, or by layer, as text `width` characters wide."""
    shown = f"{_head(roofline)}\n{render([_launches(roofline, layers)], width, ('FLOP/B', 'MB', 'MFLOP', 'GB/s'))}"
    problem = roofline.problem
    return shown + "\n".join(wrap(f"Disturbed: {problem}. {REMEDY}", width)) + "\n" if problem else shown


def projection_table(projection: Projection, width: int = 120) -> str:
    """Estimates, their assumptions and the errors on measured devices, as text `width` characters wide."""
    parts = [f"{projection.name}, predicted", render([_estimates(projection)], width)]
    parts += ["\n".join(wrap(f"Assumed: {'; '.join(ASSUMPTIONS)}.", width)), ""]
    if projection.errors:
        by_kind = "; ".join(f"{each.kind.upper()}: {each}" for each in projection.errors_by_kind.values())
        parts += wrap(f"Off by, in the median over measured devices, each predicted from the others: {by_kind}.", width)
        parts += [render([_errors(projection)], width)]
    return "\n".join(parts)


def _head(roofline: Roofline) -> str:
    """The step and the device in a few lines."""
    peaks, total = roofline.peaks, roofline.total
    rest = roofline.wall - roofline.busy
    return (
        f"{roofline.name} on {roofline.device.id},\n"
        f"median of {roofline.timing.rounds} steps: {roofline.wall * 1e3:.2f} ms\n"
        f"{total.launches} launches take {roofline.busy * 1e3:.2f} ms; {rest * 1e3:.2f} ms pass between them,\n"
        f"in transfers and on the host\n"
        f"at best: {peaks.flops / 1e9:,.0f} GFLOP/s, {peaks.memory / 1e9:,.0f} GB/s from memory, "
        f"{peaks.cache / 1e9:,.0f} GB/s from cache, {peaks.launch * 1e6:.1f} µs a launch{_units(peaks)}"
    )


def _units(peaks: Peaks) -> str:
    """The peaks of units, as a line of its own."""
    found = (f"{speed / 1e9:,.0f} GOP/s in {kind}" for kind, speed in peaks.units.items())
    return f"\nunits: {', '.join(found)}" if peaks.units else ""


def _launches(roofline: Roofline, layers: bool) -> Table:
    points = roofline.by_layer() if layers else roofline.by_kind()
    typed = any(point.compute != "fp32" for point in points)  # else the column would say nothing
    headings = "layer" if layers else "kind of launch", *(("type",) if typed else ()), *HEADINGS
    found = table(None, headings, right=True)
    for point in points:
        found.add_row(
            point.name, *([point.compute if point.flops else "–"] if typed else []), *_row(point, roofline.busy)
        )
    found.add_section()
    found.add_row("all", *([""] if typed else []), *_row(roofline.total, roofline.busy))
    return found


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
    headings = "precision", "efficiency of", "n", "bound ms", "expected ms", "off by", "memory MB", "fits"
    found = table(None, ("device", *headings), right=True)
    for e in projection.estimates:
        times = f"{e.bound * 1e3:,.1f}", f"{e.expected * 1e3:,.1f}", str(projection.error_of(e) or "not measured")
        sizes = f"{e.nbytes / MB:,.1f}", _fits(e)
        found.add_row(e.device.name, e.precision, e.basis, str(e.launches), *times, *sizes)
    return found


def _fits(estimate: Estimate) -> str:
    return "yes" if estimate.fits else f"does not fit {estimate.device.memory / MB:,.0f} MB"


def _errors(projection: Projection) -> Table:
    """A row for each measured device, a column for each step."""
    errors, dates = projection.errors, {record.name: record.date for record in projection.records}
    names = list(dict.fromkeys(step for steps in errors.values() for step in steps))
    found = table(None, ("measured device", "on", *names), right=True)
    for device, by_step in errors.items():
        found.add_row(device, dates[device], *(f"{by_step[step]:+.0%}" if step in by_step else "–" for step in names))
    return found
