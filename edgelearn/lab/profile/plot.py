"""A roofline as a chart: speed over arithmetic intensity, both logarithmic, below the device's peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgelearn.lab.runs import figures

from .roofline import Roofline, kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
