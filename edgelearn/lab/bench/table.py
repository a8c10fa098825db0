"""A report as text to read: a table a workload."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.lab.measure import quartiles
from edgelearn.units import MB

from .report import BenchReport
from .variant import Variant
from .workloads import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType


def as_text(report: BenchReport, width: int = 120) -> str:
    """The report as text, `width` characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    for part in _parts(report):
        console.print(part, highlight=False, soft_wrap=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value < 100 else f"{value:.0f}"


def _parts(report: BenchReport) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = [Text(report.summary)]
    parts += [_workload_table(report, workload) for workload in report.workloads]
    kept, noisy, repeated = report.noise
    limit = report.config["foreign_limit"]
    parts.append(
        Text(
            f"{kept} blocks; {noisy} of them noisy (other processes used more than {limit:.0%} of the cores even in "
            f"the quietest attempt), {repeated} attempts thrown away. Memory: peak of the steps minus memory after the "
            "imports; peak of the whole process."
        )
    )
    for name, packages in report.not_installed.items():
        parts.append(Text(f"{name}: not installed (needs {', '.join(packages)})."))
    for variant in report.variants:
        if variant.error is not None:
            parts.append(Text(f"{variant.workload} {variant.label} failed:\n{variant.error}"))
        elif not report.agrees(variant):
            parts.append(Text(f"{variant.workload} {variant.label}: computes other numbers: {_numbers(variant.probe)}"))
    return parts


def _workload_table(report: BenchReport, workload: str) -> RenderableType:
    from rich import box
    from rich.table import Table

    title = f"{workload}: {Workload.parse(workload).description}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("contender", no_wrap=True)
    for heading in ("median ms", "middle half ms", "time / fastest peer's"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("noisy", "steps MB", "peak MB", "import s", "first step s"):
        table.add_column(heading, justify="right")
    for variant in report.of(workload):
        table.add_row(*_row(report, variant))
    return table


def _row(report: BenchReport, variant: Variant) -> list[str]:
    if not variant.measured:
        return [variant.label, "failed" if variant.error else "no blocks", *[""] * 7]
    low, _, high = quartiles(variant.seconds)
    return [
        variant.label,
        milliseconds(variant.median),
        f"{milliseconds(low)} – {milliseconds(high)}",
        _comparison(report, variant),
        f"{sum(block.noisy for block in variant.blocks)} of {len(variant.blocks)}",
        _megabytes(variant.memory),
        _megabytes(variant.memory_process),
        "" if variant.import_seconds is None else f"{variant.import_seconds:.2f}",
        "" if variant.first_step_seconds is None else f"{variant.first_step_seconds:.2f}",
    ]


def _comparison(report: BenchReport, variant: Variant) -> str:
    if not report.agrees(variant):
        return "computes other numbers"
    if variant is report.fastest_peer(variant.workload):
        return "fastest peer"
    ratio = report.comparison(variant)
    return "" if ratio is None else str(ratio)


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / MB:.0f}"


def _numbers(probe: list[float]) -> str:
    return " ".join(f"{number:.5g}" for number in probe)
