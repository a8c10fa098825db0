"""A report as text to read: a table a workload."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from .report import BenchReport
from .results import Comparison, Lane
from .workloads import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

MIB = 1 << 20


def as_text(report: BenchReport, width: int = 120) -> str:
    """The report as text, `width` characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    for part in _parts(report):
        console.print(part, highlight=False, soft_wrap=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def ratio(found: Comparison) -> str:
    """The ratio with its middle half."""
    return f"{found.ratio:.2f} ({found.low:.2f} – {found.high:.2f})"


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value < 100 else f"{value:.0f}"


def _parts(report: BenchReport) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = [Text(report.summary)]
    parts += [_workload_table(report, workload) for workload in report.workloads]
    kept, noisy, repeated = report.noise
    limit = report.settings["foreign_limit"]
    parts.append(
        Text(
            f"{kept} blocks; {noisy} of them noisy (others used more than {limit:.0%} of the cores even at the "
            f"quietest attempt), {repeated} attempts thrown away. Memory: of the steps, over that after the imports; "
            "of the whole process from its start."
        )
    )
    for name, packages in report.not_installed.items():
        parts.append(Text(f"{name}: not installed (needs {', '.join(packages)})."))
    for lane in report.lanes:
        if lane.error is not None:
            parts.append(Text(f"{lane.workload} {lane.label} failed:\n{lane.error}"))
        elif not report.agrees(lane):
            parts.append(Text(f"{lane.workload} {lane.label}: computes other numbers: {_numbers(lane.probe)}"))
    return parts


def _workload_table(report: BenchReport, workload: str) -> RenderableType:
    from rich import box
    from rich.table import Table

    title = f"{workload}: {Workload.parse(workload).description}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("contender", no_wrap=True)
    for heading in ("median ms", "middle half ms", "time / fastest peer's"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("noisy", "steps MiB", "peak MiB", "import s", "first step s"):
        table.add_column(heading, justify="right")
    for lane in report.of(workload):
        table.add_row(*_row(report, lane))
    return table


def _row(report: BenchReport, lane: Lane) -> list[str]:
    if not lane.measured:
        return [lane.label, "failed" if lane.error else "no blocks", *[""] * 7]
    low, high = np.quantile(lane.seconds, (0.25, 0.75))
    return [
        lane.label,
        milliseconds(lane.median),
        f"{milliseconds(low)} – {milliseconds(high)}",
        _verdict(report, lane),
        f"{sum(block.noisy for block in lane.blocks)} of {len(lane.blocks)}",
        _mebibytes(lane.memory),
        _mebibytes(lane.memory_process),
        "" if lane.import_seconds is None else f"{lane.import_seconds:.2f}",
        "" if lane.first_step_seconds is None else f"{lane.first_step_seconds:.2f}",
    ]


def _verdict(report: BenchReport, lane: Lane) -> str:
    if not report.agrees(lane):
        return "computes other numbers"
    if lane is report.fastest_peer(lane.workload):
        return "fastest peer"
    found = report.comparison(lane)
    return "" if found is None else found.refusal or ratio(found)


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:.0f}"


def _numbers(probe: list[float]) -> str:
    return " ".join(f"{number:.5g}" for number in probe)
