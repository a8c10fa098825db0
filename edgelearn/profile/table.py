"""A roofline as a table."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from .roofline import Point, Roofline

if TYPE_CHECKING:
    from rich.table import Table

MIB = 1 << 20
HEADINGS = ("n", "MFLOP", "MiB", "FLOP/B", "ms", "share", "GFLOP/s", "GB/s", "of roof")


def text(roofline: Roofline, width: int, layers: bool) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(_table(roofline, layers), highlight=False)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join([head(roofline), *lines]) + "\n"


def head(roofline: Roofline) -> str:
    """The step and the device in a few lines."""
    peaks, total = roofline.peaks, roofline.total
    rest = roofline.wall - roofline.busy
    return (
        f"{roofline.name} on {roofline.device.id}, median of {roofline.measured.rounds} steps: "
        f"{roofline.wall * 1e3:.2f} ms\n"
        f"{total.launches} launches take {roofline.busy * 1e3:.2f} ms; {rest * 1e3:.2f} ms are between them, transfers "
        f"and the host's\n"
        f"at best: {peaks.flops / 1e9:,.0f} GFLOP/s, {peaks.memory / 1e9:,.0f} GB/s from memory, "
        f"{peaks.cache / 1e9:,.0f} GB/s from cache, {peaks.launch * 1e6:.1f} µs a launch"
    )


def _table(roofline: Roofline, layers: bool) -> Table:
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
        f"{point.nbytes / MIB:,.2f}",
        f"{point.intensity:,.1f}" if linear else "–",
        f"{point.seconds * 1e3:,.3f}",
        f"{point.seconds / busy:.1%}",
        f"{point.flops / point.seconds / 1e9:,.0f}" if linear else "–",
        f"{point.nbytes / point.seconds / 1e9:,.1f}",
        f"{point.efficiency:.0%}",
    ]
