"""A report as a table in Markdown: a row a workload, a column a contender at its best."""

from __future__ import annotations

from .report import BenchReport
from .results import Lane, compare
from .table import MIB, milliseconds, ratio
from .workloads import Workload


def as_markdown(report: BenchReport) -> str:
    """Command, machine and date, then the table: of each contender's fastest lane the median, the memory of its steps,
    and the subject's time over its time with the middle half of that, unless the spread forbids it."""
    contenders = list(dict.fromkeys(lane.contender for lane in report.lanes))
    peers = [name for name in contenders if name != report.subject]
    columns = [name for name in (report.subject, *peers) if name in contenders]
    lines = [f"`{report.command}`: {report.summary}", ""]
    lines.append("| work | " + " | ".join(columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    for workload in report.workloads:
        description = Workload.parse(workload).description
        cells = [f"`{workload}`: {description}", *(_cell(report, workload, name) for name in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(report: BenchReport, workload: str, contender: str) -> str:
    lane, own = report.best(workload, contender), report.best(workload, report.subject)
    if lane is None:
        return "–"
    text = f"{milliseconds(lane.median)} ms" + (f", {lane.memory / MIB:.0f} MiB" if lane.memory is not None else "")
    how = _how(lane)
    text += f" ({how})" if how else ""
    if own is None or lane is own:
        return text
    found = compare(own.seconds, lane.seconds)
    return f"{text}<br>{found.refusal or ratio(found)}"


def _how(lane: Lane) -> str:
    return ", ".join(filter(None, (lane.variant, lane.environment)))
