"""A variant: what was measured of one way in which a contender does a workload.

The report of a run: measurements and comparisons, to and from JSON; table.py, markdown.py and chart.py show it.

A report as text to read: a table a workload.

A report as a table in Markdown: a row a workload and type, a column a contender at its best.

A report as a chart: the time of every variant over the subject's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from edgelearn import atomic, records
from edgelearn.display import MB, Displayed
from edgelearn.errors import DataError, FormatError
from edgelearn.lab.measure import Block
from edgelearn.lab.runs.figures import BLUE, GRAY, ORANGE, to_png
from edgelearn.lab.runs.tables import render, table
from edgelearn.statistics import ADVICE, Ratio, compare, quartiles

from .workloads import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table


# Relative difference allowed between what contenders compute, by type. With batch statistics, elements that sit on an
# edge of ReLU6 fall to either side by rounding alone, which moves the loss of the third step by about a thousandth.
AGREEMENT = {"fp32": 5e-3, "tf32": 1e-2, "bf16": 3e-2, "fp16": 1e-2, "int8": 0.1}
FULL = "fp32"


@dataclass
class Variant:
    """One variant of one contender on one workload, in one environment, in one process.

    - `compute`: the type that it computes in; see `Workload`.
    - `probe`: numbers computed in the first steps, by which contenders are compared.
    - `memory_after_imports`, `memory_start`, `memory_peak`: main memory of the process in bytes: after the imports, at
      its peak until the first steps are done, and at its peak afterwards (None where the kernel can't tell).
    - `error`: why it failed, else None.
    """

    workload: str
    contender: str
    name: str
    environment: str = ""
    import_seconds: float | None = None
    first_step_seconds: float | None = None
    probe: list[float] = field(default_factory=list)
    memory_after_imports: int | None = None
    memory_start: int | None = None
    memory_peak: int | None = None
    blocks: list[Block] = field(default_factory=list)
    error: str | None = None
    compute: str = FULL

    @property
    def label(self) -> str:
        words = self.contender, "" if self.compute == FULL else self.compute, self.name
        return ", ".join(filter(None, (" ".join(filter(None, words)), self.environment)))

    @property
    def measured(self) -> bool:
        return self.error is None and bool(self.blocks)

    @property
    def seconds(self) -> list[float]:
        return [block.seconds for block in self.blocks]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def memory(self) -> int | None:
        """Peak of the steps minus memory after the imports, in bytes."""
        if self.memory_peak is None or self.memory_after_imports is None:
            return None
        return self.memory_peak - self.memory_after_imports

    @property
    def memory_process(self) -> int | None:
        """Peak of the process, imports and preparations included, in bytes."""
        known = [size for size in (self.memory_start, self.memory_peak) if size is not None]
        return max(known, default=None)


def fastest_peer(variants: Iterable[Variant], subject: str) -> Variant | None:
    """The measured variant with the lowest median among those of other contenders than `subject`."""
    peers = [variant for variant in variants if variant.measured and variant.contender != subject]
    return min(peers, key=lambda variant: variant.median, default=None)


def disagreeing(variants: Iterable[Variant]) -> list[Variant]:
    """The variants of one workload that compute other numbers than the rest.

    The yardstick is the median over contenders, so a contender with many variants has one vote; if two contenders
    contradict each other, both are in the list. Where there is float32, it alone is the yardstick; other types may
    differ from it by their rounding.
    """
    probed = [variant for variant in variants if variant.measured and variant.probe]
    votes: dict[str, list[list[float]]] = {}
    full = [variant for variant in probed if variant.compute == FULL]
    for variant in full or probed:
        votes.setdefault(variant.contender, []).append(variant.probe)
    if not votes:
        return []
    yardstick = np.median([np.median(probes, axis=0) for probes in votes.values()], axis=0)
    size = np.abs(yardstick).max()
    return [v for v in probed if np.abs(v.probe - yardstick).max() > AGREEMENT[v.compute] * size]


class Device(TypedDict):
    """Entries that are read of a device's facts."""

    platform: str
    name: str
    driver: str


class Machine(TypedDict):
    """Entries that are read of a machine's description."""

    processor: str
    cores: int
    device: Device


class Settings(TypedDict):
    """Entries that are read of a run's settings."""

    foreign_limit: float


@dataclass(repr=False)
class BenchReport(Displayed):
    """Results of a run.

    - `not_installed`: missing packages by contender.
    - `command`: the command that repeats the run.
    """

    started: str
    machine: Machine
    config: Settings
    versions: dict[str, str]
    not_installed: dict[str, list[str]]
    variants: list[Variant]
    subject: str
    command: str = ""

    @property
    def headline(self) -> str:
        return f"of {', '.join(self.workloads)}: {len(self.variants)} variants, {self.started}"

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(variant.workload for variant in self.variants))

    def of(self, workload: str) -> list[Variant]:
        """The variants of a workload: the subject's first, then from fast to slow, then those that failed."""

        def rank(variant: Variant) -> tuple[bool, bool, float]:
            return not variant.measured, variant.contender != self.subject, variant.median if variant.measured else 0.0

        return sorted((variant for variant in self.variants if variant.workload == workload), key=rank)

    @cached_property
    def _disagreeing(self) -> set[int]:
        return {id(variant) for workload in self.workloads for variant in disagreeing(self.of(workload))}

    def agrees(self, variant: Variant) -> bool:
        """True if `variant` computes the numbers that the other contenders compute."""
        return id(variant) not in self._disagreeing

    def types(self, workload: str) -> list[str]:
        """The types that a workload was computed in."""
        return list(dict.fromkeys(variant.compute for variant in self.variants if variant.workload == workload))

    def fastest_peer(self, workload: str, compute: str = FULL) -> Variant | None:
        """The yardstick of a workload in a type: the fastest variant of any contender but the subject, among those that
        agree, of that type, or of all types where no peer has it."""
        agreeing = [variant for variant in self.of(workload) if self.agrees(variant)]
        alike = [variant for variant in agreeing if variant.compute == compute]
        return fastest_peer(alike, self.subject) or fastest_peer(agreeing, self.subject)

    def comparison(self, variant: Variant) -> Ratio | None:
        """The time of `variant` over that of the fastest peer of its type. None if there is nothing to compare."""
        peer = self.fastest_peer(variant.workload, variant.compute)
        if peer is None or peer is variant or not self._counts(variant):
            return None
        return compare(variant.seconds, peer.seconds)

    def best(self, workload: str, contender: str, compute: str | None = None) -> Variant | None:
        """The fastest variant of a contender among those that agree, of a type, or of all."""
        own = [v for v in self.of(workload) if v.contender == contender and self._counts(v)]
        return next((variant for variant in own if compute in (None, variant.compute)), None)

    def _counts(self, variant: Variant) -> bool:
        return variant.measured and self.agrees(variant)

    @property
    def summary(self) -> str:
        """Machine, device, time and versions in a line."""
        device = self.machine["device"]
        parts = [
            f"{self.machine['processor']}, {self.machine['cores']} cores",
            f"{device['platform']} / {device['name']}, driver {device['driver']}",
            self.started,
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        return "; ".join(part for part in parts if part)

    @property
    def noise(self) -> tuple[int, int, int]:
        """(blocks kept, noisy ones among them, attempts thrown away)"""
        blocks = [block for variant in self.variants for block in variant.blocks]
        return len(blocks), sum(b.noisy for b in blocks), sum(b.attempts for b in blocks) - len(blocks)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values. A refused comparison has both medians and no ratio."""
        kept, noisy, repeated = self.noise
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "variants"}
        return own | {
            "noise": {"blocks": kept, "noisy": noisy, "repeated": repeated},
            "variants": [asdict(variant) | self._derived(variant) for variant in self.variants],
        }

    def _derived(self, variant: Variant) -> dict[str, Any]:
        peer, ratio = self.fastest_peer(variant.workload, variant.compute), self.comparison(variant)
        comparison = None
        if peer is not None and ratio is not None:
            comparison = {"peer": peer.label, "median": variant.median, "peer_median": peer.median}
            comparison |= {"refusal": ratio.refusal} if ratio.refusal else asdict(ratio)
        return {
            "label": variant.label,
            "median": variant.median if variant.measured else None,
            "memory": variant.memory,
            "agrees": self.agrees(variant),
            "fastest_peer": variant is peer,
            "comparison": comparison,
        }

    def write(self, path: Path | str) -> None:
        """Write the report as JSON. Raises RunError if the file can't be written."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        atomic.write_bytes(path, text.encode())

    @classmethod
    def read(cls, path: Path | str) -> BenchReport:
        """The report that `write` wrote. Raises FormatError if it is none, DataError if it can't be read."""
        try:
            record = records.read(path, _File)
            own = {name: value for name, value in record.items() if name in _names(cls)}
            own["variants"] = [{k: v for k, v in each.items() if k in _names(Variant)} for each in record["variants"]]
            report = records.convert(own, cls)
            if unknown := {variant.compute for variant in report.variants} - set(AGREEMENT):
                raise records.RecordError(f"the compute type {min(unknown)!r:.60} is unknown")
            for workload in report.workloads:
                if len({len(variant.blocks) for variant in report.of(workload) if variant.measured}) > 1:
                    raise records.RecordError(f"the variants of {workload!r:.60} have unequal numbers of blocks")
            return report
        except OSError as error:
            raise DataError(
                f"Can't read {path}: {error.strerror}. Give a file that `edgelearn bench --save` wrote."
            ) from None
        except records.RecordError as error:
            raise FormatError(
                f"{path} is no report of this version's `edgelearn bench --save` ({error}). Measure again."
            ) from None


class _File(TypedDict):
    """A report in a file, with what is computed from its measurements."""

    variants: list[dict[str, Any]]


def _names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


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


LINE, TITLE = 0.24, 0.55  # inches


def draw_chart(report: BenchReport) -> Figure:
    """A panel a workload, a line a variant: its time over that of the subject's fastest variant (or of the fastest of
    all) in the same rounds, on a logarithmic axis. A dot is the median, a bar goes from quartile to quartile; a ratio
    that is refused has no dot.

    Raises DataError if nothing was measured.
    """
    from matplotlib.figure import Figure

    panels = [(workload, variants) for workload in report.workloads if (variants := _variants(report, workload))]
    if not panels:
        raise DataError("There is nothing to draw: no contender was measured. The report's table says why.")
    heights = [len(variants) * LINE + TITLE for _, variants in panels]
    figure = Figure(figsize=(9, sum(heights) + 0.5), layout="constrained", facecolor="white")
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (workload, variants) in zip(grid, panels, strict=True):
        _panel(axes, report, workload, variants)
    grid[-1].set_xlabel(f"time / {report.subject}'s (less is faster)")
    return figure


def save_chart(report: BenchReport, path: Path | str) -> None:
    """Write the chart as a PNG. Raises RunError if that can't be done, DataError if nothing was measured."""
    atomic.write_bytes(path, to_png(draw_chart(report)))


def _variants(report: BenchReport, workload: str) -> list[Variant]:
    return [variant for variant in report.of(workload) if variant.measured and report.agrees(variant)]


def _panel(axes: Axes, report: BenchReport, workload: str, variants: list[Variant]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    reference = report.best(workload, report.subject) or variants[0]
    for place, variant in enumerate(variants):
        color = BLUE if variant.contender == report.subject else ORANGE
        if variant is reference:
            axes.plot(1, place, "D", color=color)
            continue
        found = compare(variant.seconds, reference.seconds)
        axes.plot((found.low, found.high), (place, place), color=GRAY if found.refusal else color, linewidth=3)
        if not found.refusal:
            axes.plot(found.ratio, place, "o", color=color)
    axes.axvline(1, color=GRAY, linewidth=1, zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(2, subs=(1, 1.5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(
        range(len(variants)),
        [f"{variant.label}: {milliseconds(variant.median)} ms" for variant in variants],
        fontsize=9,
    )
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_title(workload, fontsize=11, loc="left")
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
