"""Rooflines and projections as text, rooflines as charts and traces."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from edgelearn.display import MB, as_joules, plural
from edgelearn.lab.runs import figures
from edgelearn.statistics import REMEDY
from edgelearn.tables import WIDTH, Table, render

from .projection import ASSUMPTIONS, Projection
from .roofline import Point, Roofline, kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADINGS = ("n", "MFLOP", "MB", "FLOP/B", "ms", "share", "GFLOP/s", "GB/s", "of roof")
OPTIONAL = ("FLOP/B", "MB", "MFLOP", "GB/s")  # left out in this order where a line is too short
ESTIMATES = ("precision", "efficiency of", "n", "bound ms", "expected ms", "off by", "memory MB", "J", "fits")
AREA = 3000  # of a mark that took all of the time
MEDIAN, ALL = 1, 2  # processes of a trace
DEVICE, LAYERS = 1, 2  # their threads


def roofline_table(roofline: Roofline, width: int = WIDTH, layers: bool = False) -> str:
    """A roofline by kind of launch, or by layer, as text `width` characters wide."""
    return render(roofline_parts(roofline, layers), width)


def roofline_parts(roofline: Roofline, layers: bool = False) -> list[Table | str]:
    """A roofline as lines of text and a table by kind of launch, or by layer."""
    peaks, total, busy = roofline.peaks, roofline.total, roofline.busy
    head = (
        f"{roofline.name} on {roofline.device.id},\n"
        f"median of {plural(roofline.timing.rounds, 'step')}: {roofline.wall * 1e3:.2f} ms\n"
        f"{total.launches} launches take {busy * 1e3:.2f} ms; "
        f"{(roofline.wall - busy) * 1e3:.2f} ms pass between them,\nin transfers and on the host\n"
        f"at best: {peaks.flops / 1e9:,.0f} GFLOP/s, {peaks.memory / 1e9:,.0f} GB/s from memory, "
        f"{peaks.cache / 1e9:,.0f} GB/s from cache, {peaks.launch * 1e6:.1f} µs a launch"
    )
    if peaks.units:
        units = (f"{speed / 1e9:,.0f} GOP/s in {kind}" for kind, speed in peaks.units.items())
        head += f"\nunits: {', '.join(units)}"
    if energy := roofline.timing.energy:
        head += f"\nenergy: {as_joules(energy.joules)} J a step, {energy.watts:.3g} W; "
        head += f"{roofline.meter.idle() or 0:.3g} W without work, not subtracted\n{roofline.meter}"
    else:
        head += f"\nenergy {roofline.meter}"
    points = roofline.by_layer() if layers else roofline.by_kind()
    typed = any(point.compute != "fp32" for point in points)  # else the column would say nothing

    def row(name: str, compute: str, p: Point) -> list[str]:
        linear = p.flops > 0
        cells = [
            str(p.launches), f"{p.flops / 1e6:,.1f}" if linear else "–", f"{p.nbytes / MB:,.2f}",
            f"{p.intensity:,.1f}" if linear else "–", f"{p.seconds * 1e3:,.3f}", f"{p.seconds / busy:.1%}",
            f"{p.flops / p.seconds / 1e9:,.0f}" if linear else "–", f"{p.nbytes / p.seconds / 1e9:,.1f}",
            f"{p.efficiency:.0%}",
        ]  # fmt: skip
        return [name, *[compute] * typed, *cells]

    rows = [row(point.name, point.compute if point.flops else "–", point) for point in points]
    header = ("layer" if layers else "kind of launch", *["type"] * typed, *HEADINGS)
    remedy = [f"Disturbed: {roofline.problem}. {REMEDY}"] if roofline.problem else []
    rows += [[], row("all", "", total)]
    return [head, Table(header, rows, notes=remedy, right=True, optional=OPTIONAL)]


def projection_table(projection: Projection, width: int = WIDTH) -> str:
    """Estimates, their assumptions and the errors on measured devices, as text `width` characters wide."""
    return render(projection_parts(projection), width)


def projection_parts(projection: Projection) -> list[Table | str]:
    """Estimates, their assumptions and the errors on measured devices, as lines of text and tables."""
    rows = [
        (
            e.device.name, e.precision, e.basis, e.launches, f"{e.bound * 1e3:,.1f}", f"{e.expected * 1e3:,.1f}",
            projection.error_of(e) or "not measured", f"{e.nbytes / MB:,.1f}",
            as_joules(e.joules), "yes" if e.fits else f"no: {e.device.memory / MB:,.0f} MB",
        )
        for e in projection.estimates
    ]  # fmt: skip
    parts: list[Table | str] = [
        f"{projection.name}, predicted; energy (J) is projected",
        Table(("device", *ESTIMATES), rows, right=True),
    ]
    parts += [f"Assumed: {'; '.join(ASSUMPTIONS)}.\n"]
    if errors := projection.errors:
        by_kind = "; ".join(f"{each.kind.upper()}: {each}" for each in projection.errors_by_kind.values())
        parts += [f"Off by, in the median over measured devices, each predicted from the others: {by_kind}."]
        names = list(dict.fromkeys(step for steps in errors.values() for step in steps))
        dates = {record.name: record.date for record in projection.records}
        rows = [
            (device, dates[device], *(f"{steps[step]:+.0%}" if step in steps else "–" for step in names))
            for device, steps in errors.items()
        ]
        parts += [Table(("measured device", "on", *names), rows, right=True)]
    return parts


def plot(roofline: Roofline) -> Figure:
    """A roofline as a chart, speed over arithmetic intensity, both logarithmic, below the device's peaks: a mark for
    each launch of a linear layer, as large as its share of the time, one look for each kind."""
    peaks, figure = roofline.peaks, figures.canvas(figures.WIDTH, 5)
    axes = figure.add_subplot()
    marks: dict[str, list[tuple[float, float, float]]] = {}
    for timed in roofline.timing.launches:
        if flops := timed.launch.flops:
            place = flops / timed.launch.nbytes, flops / timed.median / 1e9
            marks.setdefault(kind(timed.launch), []).append((*place, AREA * timed.median / roofline.busy))
    intensities = [mark[0] for found in marks.values() for mark in found]
    intensities += [peaks.flops / peaks.memory, peaks.flops / peaks.cache]
    for name, bandwidth, line in (("memory", peaks.memory, "-"), ("cache", peaks.cache, "--")):
        places = (min(intensities) / 2, peaks.flops / bandwidth, max(intensities) * 2)
        speeds = [min(peaks.flops, x * bandwidth) / 1e9 for x in places]
        label = f"{name}: {bandwidth / 1e9:,.0f} GB/s, at most {peaks.flops / 1e9:,.0f} GFLOP/s"
        axes.plot(places, speeds, color=figures.GRAY, linestyle=line, linewidth=2, label=label)
    for index, (name, found) in enumerate(marks.items()):
        x, y, sizes = zip(*found, strict=True)
        look = {key: value for key, value in figures.look(index).items() if key != "linestyle"}
        axes.scatter(x, y, sizes, **look, alpha=0.6, label=name)
    axes.set(xscale="log", yscale="log")
    title = f"{roofline.name}: {roofline.wall * 1e3:,.2f} ms"  # a longer one runs into the legend
    figures.style(axes, title, "Arithmetic intensity (FLOP/byte)", "Speed (GFLOP/s)")
    for handle in figure.legend(loc="outside right upper", fontsize=10, frameon=False).legend_handles[2:]:
        handle.set_sizes([40])  # pyright: ignore[reportOptionalMemberAccess]
    return figure


def trace(roofline: Roofline) -> dict[str, Any]:
    """The measured steps in the Trace Event Format that chrome://tracing and ui.perfetto.dev open: complete events
    ("X"), times in microseconds. Each launch of the median step stands where it ran, so that gaps show, with its facts;
    its layer is on a line of its own. Below, one after the other, the launches of all steps that were measured."""
    timed, names = roofline.timing.launches, [kind(one.launch) for one in roofline.timing.launches]
    events: list[dict[str, Any]] = []
    for process, name, threads in (
        (MEDIAN, "the median step", {DEVICE: "launches", LAYERS: "layers"}),
        (ALL, "all steps", {DEVICE: "launches", LAYERS: "steps"}),
    ):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
        events += [
            {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": line}}
            for thread, line in threads.items()
        ]

    def add(process: int, thread: int, name: str, start: float, seconds: float, **facts: Any) -> None:
        times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
        events.append({"ph": "X", "pid": process, "tid": thread, "name": name, **times, **facts})

    for one, name, bound in zip(timed, names, roofline.bounds, strict=True):
        launch = one.launch
        facts = {
            "kernel": launch.kernel, "grid": list(launch.grid), "MFLOP": launch.flops / 1e6, "bytes": launch.nbytes,
            "bound µs": round(bound * 1e6, 3), "of the roof": round(bound / one.seconds, 3),
        }  # fmt: skip
        add(MEDIAN, DEVICE, name, one.start, one.seconds, args=facts)
    for layer, group in groupby(timed, lambda one: one.launch.layer):
        row = list(group)
        add(MEDIAN, LAYERS, layer, row[0].start, row[-1].start + row[-1].seconds - row[0].start)
    begun = 0.0
    for number, step in enumerate(roofline.timing.steps, start=1):
        for name, (start, seconds) in zip(names, step, strict=True):
            add(ALL, DEVICE, name, begun + start, seconds)
        length = step[-1][0] + step[-1][1]
        add(ALL, LAYERS, f"step {number}", begun, length)
        begun += length
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step": roofline.name, "device": roofline.device.id, "wall ms": roofline.wall * 1e3},
    }
