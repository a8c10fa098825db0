"""A report as text to read: a table a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgelearn.lab.measure import ADVICE, quartiles
from edgelearn.lab.runs.tables import render, table
from edgelearn.units import MB

from .report import BenchReport
from .variant import Variant
from .workloads import Workload

if TYPE_CHECKING:
    from rich.table import Table

HEADER = (
    "contender", "median ms", "middle half ms", "time / fastest peer's", "noisy", "steps MB", "peak MB", "import s",
    "first step s",
)  # fmt: skip


def as_text(report: BenchReport, width: int = 120) -> str:
    """The report as text, `width` characters wide."""
    return render(_parts(report), width)


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value < 100 else f"{value:.0f}"


def _parts(report: BenchReport) -> list[Table | str]:
    parts: list[Table | str] = [report.summary, f"Times are medians of {_rounds(report)}, contenders in turn."]
    for workload in report.workloads:
        parts += [f"\n{workload}: {Workload.parse(workload).description}", _workload_table(report, workload)]
    kept, noisy, repeated = report.noise
    limit = report.config["foreign_limit"]
    parts.append(
        f"{kept} blocks; {noisy} of them noisy (other processes used more than {limit:.0%} of the cores even in "
        f"the quietest attempt), {repeated} attempts thrown away. Memory: peak of the steps minus memory after the "
        "imports; peak of the whole process."
    )
    found = (report.comparison(variant) for variant in report.variants)
    parts += [ADVICE[refusal] for refusal in dict.fromkeys(each.refusal for each in found if each) if refusal]
    for name, packages in report.not_installed.items():
        parts.append(f"{name}: not installed (needs {', '.join(packages)}).")
    for variant in report.variants:
        if variant.error is not None:
            parts.append(f"{variant.workload} {variant.label} failed:\n{variant.error}")
        elif not report.agrees(variant):
            parts.append(f"{variant.workload} {variant.label}: computes other numbers: {_numbers(variant.probe)}")
    return parts


def _rounds(report: BenchReport) -> str:
    """ "9 blocks of 3 to 41 steps" """
    counts = sorted({len(variant.blocks) for variant in report.variants if variant.measured})
    steps = sorted({block.steps for variant in report.variants for block in variant.blocks})
    return f"{_span(counts)} blocks of {_span(steps)} steps"


def _span(numbers: list[int]) -> str:
    return " to ".join(map(str, dict.fromkeys(numbers[:1] + numbers[-1:]))) or "no"


def _workload_table(report: BenchReport, workload: str) -> Table:
    found = table(None, HEADER, right=True)
    for variant in report.of(workload):
        found.add_row(*_row(report, variant))
    return found


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
    peer = report.fastest_peer(variant.workload, variant.compute)
    if peer is None:
        return ""
    if variant is peer:
        return "fastest peer"
    ratio = report.comparison(variant)
    other = "" if peer.compute == variant.compute else f", to {peer.label}"
    return "" if ratio is None else f"{ratio}{other}"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / MB:.0f}"


def _numbers(probe: list[float]) -> str:
    return " ".join(f"{number:.5g}" for number in probe)
