"""A report as a table in Markdown: a row a workload and type, a column a contender at its best."""

from __future__ import annotations

from edgelearn.lab.measure import compare
from edgelearn.units import MB

from .report import BenchReport
from .table import milliseconds
from .variant import Variant
from .workloads import Workload


def as_markdown(report: BenchReport) -> str:
    """Command, machine and date, then the table: the median of each contender's fastest variant, the memory of its
    steps, and the ratio of the subject's time to its time, unless the spread forbids it."""
    contenders = list(dict.fromkeys(variant.contender for variant in report.variants))
    peers = [name for name in contenders if name != report.subject]
    columns = [name for name in (report.subject, *peers) if name in contenders]
    lines = [f"`{report.command}`: {report.summary}", ""]
    lines.append("| work | " + " | ".join(columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    for workload in report.workloads:
        description = Workload.parse(workload).description
        types = report.types(workload)
        for compute in types:
            work = f"`{workload}`: {description}" + (f", {compute}" if len(types) > 1 else "")
            cells = [work, *(_cell(report, workload, name, compute) for name in columns)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(report: BenchReport, workload: str, contender: str, compute: str) -> str:
    """The fastest variant in a type. A peer that hasn't the type is shown at its best in another, which is named."""
    own, variant = report.best(workload, report.subject, compute), report.best(workload, contender, compute)
    if (
        variant is None
        and contender != report.subject
        and all(v.contender == report.subject for v in report.of(workload) if v.compute == compute)
    ):
        variant = report.best(workload, contender)
    if variant is None:
        return "–"
    text = f"{milliseconds(variant.median)} ms" + (
        f", {variant.memory / MB:.0f} MB" if variant.memory is not None else ""
    )
    how = ", ".join(filter(None, (variant.compute if variant.compute != compute else "", _how(variant))))
    text += f" ({how})" if how else ""
    if own is None or variant is own:
        return text
    return f"{text}<br>{compare(own.seconds, variant.seconds)}"


def _how(variant: Variant) -> str:
    return ", ".join(filter(None, (variant.name, variant.environment)))
