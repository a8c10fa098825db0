"""Rooflines and projections as text.

A roofline as a chart: speed over arithmetic intensity, both logarithmic, below the device's peaks.

A measured step in the Trace Event Format that chrome://tracing and ui.perfetto.dev open.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from edgelearn.display import MB
from edgelearn.lab.runs import figures
from edgelearn.lab.runs.tables import render, table
from edgelearn.statistics import REMEDY

from .peaks import Peaks
from .projection import ASSUMPTIONS, Estimate, Projection
from .roofline import Point, Roofline, TimedLaunch, kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
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


MARKERS = ("o", "s", "^")
AREA = 3000  # of a mark that took all of the time


def plot(roofline: Roofline) -> Figure:
    """A mark for each launch of a linear layer, as large as its share of the time, one look for each kind."""
    figure = figures.canvas(10, 5)
    axes = figure.add_subplot()
    _roofs(axes, roofline)
    _marks(axes, roofline)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)", fontsize=11)
    axes.set_ylabel("Speed (GFLOP/s)", fontsize=11)
    axes.set_title(f"{roofline.name} on {roofline.device.name}: {roofline.wall * 1e3:,.2f} ms", fontsize=12)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for handle in figure.legend(loc="outside right upper", fontsize=10, frameon=False).legend_handles[2:]:
        handle.set_sizes([40])  # pyright: ignore[reportOptionalMemberAccess]
    return figure


def _roofs(axes: Axes, roofline: Roofline) -> None:
    peaks = roofline.peaks
    intensities = [timed.launch.flops / timed.launch.nbytes for timed in roofline.timing.launches if timed.launch.flops]
    ridges = [peaks.flops / peaks.memory, peaks.flops / peaks.cache]
    low, high = min(intensities + ridges) / 2, max(intensities + ridges) * 2
    for name, bandwidth, style in (("memory", peaks.memory, "-"), ("cache", peaks.cache, "--")):
        places = (low, peaks.flops / bandwidth, high)
        speeds = [min(peaks.flops, x * bandwidth) / 1e9 for x in places]
        label = f"{name}: {bandwidth / 1e9:,.0f} GB/s, at most {peaks.flops / 1e9:,.0f} GFLOP/s"
        axes.plot(places, speeds, color=figures.GRAY, linestyle=style, linewidth=2, label=label)


def _marks(axes: Axes, roofline: Roofline) -> None:
    marks: dict[str, list[tuple[float, float, float]]] = {}
    for timed in roofline.timing.launches:
        launch = timed.launch
        if launch.flops:
            place = launch.flops / launch.nbytes, launch.flops / timed.median / 1e9
            marks.setdefault(kind(launch), []).append((*place, AREA * timed.median / roofline.busy))
    for index, (name, found) in enumerate(marks.items()):
        x, y, sizes = zip(*found, strict=True)
        color = figures.PALETTE[index % len(figures.PALETTE)]
        axes.scatter(x, y, sizes, color=color, marker=MARKERS[index // len(figures.PALETTE)], alpha=0.6, label=name)


DEVICE, LAYERS = 1, 2  # threads


def trace(roofline: Roofline) -> dict[str, Any]:
    """The step as JSON values for chrome://tracing or ui.perfetto.dev: complete events ("X"), times in microseconds.
    Each launch of the median step stands where it ran, so that gaps show; its layer is on a line of its own."""
    timed = roofline.timing.launches
    events = [_named(DEVICE, "launches"), _named(LAYERS, "layers")]
    for one, bound in zip(timed, roofline.bounds, strict=True):
        launch = one.launch
        facts = {
            "kernel": launch.kernel, "grid": list(launch.grid), "MFLOP": launch.flops / 1e6, "bytes": launch.nbytes,
            "bound µs": round(bound * 1e6, 3), "of the roof": round(bound / one.seconds, 3),
        }  # fmt: skip
        events.append(_event(DEVICE, kind(launch), one.start, one.seconds, facts))
    for layer, first, last in _runs(timed):
        events.append(_event(LAYERS, layer, first.start, last.start + last.seconds - first.start, {}))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step": roofline.name, "device": roofline.device.id, "wall ms": roofline.wall * 1e3},
    }


def _named(thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _event(thread: int, name: str, start: float, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "pid": 1, "tid": thread, "name": name, **times, "args": facts}


def _runs(timed: list[TimedLaunch]) -> list[tuple[str, TimedLaunch, TimedLaunch]]:
    """(layer, first launch, last launch) of each row of launches of one layer."""
    runs: list[tuple[str, TimedLaunch, TimedLaunch]] = []
    for one in timed:
        layer = one.launch.layer
        if runs and runs[-1][0] == layer:
            runs[-1] = layer, runs[-1][1], one
        else:
            runs.append((layer, one, one))
    return runs
