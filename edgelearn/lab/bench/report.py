"""The report of a run: measurements and comparisons, to and from JSON, as text, in Markdown and as a chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from edgelearn import atomic, records
from edgelearn.display import MB, Displayed, as_joules, plural
from edgelearn.errors import DataError, FormatError
from edgelearn.lab.energy import NOT_MEASURED, Energy
from edgelearn.lab.measure import Block
from edgelearn.lab.runs import figures
from edgelearn.statistics import ADVICE, Ratio, compare, quartiles
from edgelearn.tables import WIDTH, Table, render

from .workloads import AGREEMENT, FULL, Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = (
    "contender", "median ms", "middle half ms", "time / fastest peer's", "noisy", "steps MB", "peak MB", "import s",
    "first step s", "J a step",
)  # fmt: skip
LINE, TITLE = 0.24, 0.55  # inches of a chart
SEVERAL = "several layers at once"


@dataclass
class Variant:
    """One variant of one contender on one workload, in one environment, in one process.

    - `compute`: the type that it computes in; see `Workload`.
    - `probe`: numbers computed in the first steps, by which contenders are compared.
    - `memory_after_imports`, `memory_start`, `memory_peak`: main memory of the process in bytes: after the imports, at
      its peak until the first steps are done, and at its peak afterwards (None where the kernel can't tell).
    - `energy`: of a loop of steps, by the device's counter (None: not measured).
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
    energy: Energy | None = None

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
        return max((size for size in (self.memory_start, self.memory_peak) if size is not None), default=None)


def disagreeing(variants: list[Variant]) -> list[Variant]:
    """The variants of one workload that compute other numbers than the rest.

    The yardstick is the median over contenders, so a contender with many variants has one vote; if two contenders
    contradict each other, both are in the list. Where there is float32, it alone is the yardstick; other types may
    differ from it by their rounding.
    """
    probed = [variant for variant in variants if variant.measured and variant.probe]
    votes: dict[str, list[list[float]]] = {}
    for variant in [variant for variant in probed if variant.compute == FULL] or probed:
        votes.setdefault(variant.contender, []).append(variant.probe)
    if not votes:
        return []
    yardstick = np.median([np.median(probes, axis=0) for probes in votes.values()], axis=0)
    size = np.abs(yardstick).max()
    return [v for v in probed if np.abs(v.probe - yardstick).max() > AGREEMENT[v.compute] * size]


class BenchDevice(TypedDict):
    """Entries that are read of a device's facts."""

    platform: str
    name: str
    driver: str


class Machine(TypedDict):
    """Entries that are read of a machine's description."""

    processor: str
    cores: int
    device: BenchDevice


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer in a step, forward and backward pass and update together.

    Arguments:
    - `layer`: its name; SEVERAL: launches for many layers, such as updates.
    - `serial`: of the serial C.
    - `device`: of the launches on the OpenCL device, without the time between them.

    A layer that is computed with the one before, such as a ReLU, has no times of its own.
    """

    layer: str
    serial: float
    device: float

    @property
    def ratio(self) -> float:
        """How many times longer the serial C takes."""
        return self.serial / self.device if self.device else float("inf")


class EnergyFacts(TypedDict, total=False):
    """How energy was counted: `source`, or why it was not, and the device's power without work in watts."""

    source: str
    idle_watts: float


class Settings(TypedDict):
    """Entries that are read of a run's settings."""

    foreign_limit: float


@dataclass(repr=False)
class BenchReport(Displayed):
    """Results of a run.

    - `not_installed`: missing packages by contender.
    - `command`: the command that repeats the run.
    - `energy`: how energy was counted, or why it was not (default: of a report that is older, unknown).
    - `layers`: times of each layer, by workload (default: they were not taken).
    """

    started: str
    machine: Machine
    config: Settings
    versions: dict[str, str]
    not_installed: dict[str, list[str]]
    variants: list[Variant]
    subject: str
    command: str = ""
    energy: EnergyFacts = field(default_factory=EnergyFacts)
    layers: dict[str, list[LayerTime]] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        return f"of {', '.join(self.workloads)}: {plural(len(self.variants), 'variant')}, {self.started}"

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

    def agreeing(self, workload: str, compute: str | None = None, contender: str | None = None) -> list[Variant]:
        """The measured variants of a workload that agree with the others, in the order of `of`.

        Arguments:
        - `compute`: the type (default: all).
        - `contender`: the contender (default: all).
        """
        found = [variant for variant in self.of(workload) if variant.measured and self.agrees(variant)]
        return [v for v in found if compute in (None, v.compute) and contender in (None, v.contender)]

    def types(self, workload: str) -> list[str]:
        """The types that a workload was computed in."""
        return list(dict.fromkeys(variant.compute for variant in self.variants if variant.workload == workload))

    def fastest_peer(self, workload: str, compute: str = FULL) -> Variant | None:
        """The yardstick of a workload in a type: the fastest variant of any contender but the subject, among those that
        agree, of that type, or of all types where no peer has it."""
        peers = [variant for variant in self.agreeing(workload) if variant.contender != self.subject]
        alike = [variant for variant in peers if variant.compute == compute]
        return min(alike or peers, key=lambda variant: variant.median, default=None)

    def comparison(self, variant: Variant) -> Ratio | None:
        """The time of `variant` over that of the fastest peer of its type. None if there is nothing to compare."""
        peer = self.fastest_peer(variant.workload, variant.compute)
        if peer is None or peer is variant or not (variant.measured and self.agrees(variant)):
            return None
        return compare(variant.seconds, peer.seconds)

    @property
    def summary(self) -> str:
        """Machine, device, time and versions in a line."""
        device = self.machine["device"]
        parts = [
            f"{self.machine['processor']}, {plural(self.machine['cores'], 'core')}",
            f"{device['platform']} / {device['name']}, driver {device['driver']}",
            self.started,
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        return "; ".join(part for part in parts if part)

    @property
    def noise(self) -> dict[str, int]:
        """Blocks kept, noisy ones among them, and attempts thrown away."""
        blocks = [block for variant in self.variants for block in variant.blocks]
        repeated = sum(block.attempts for block in blocks) - len(blocks)
        return {"blocks": len(blocks), "noisy": sum(block.noisy for block in blocks), "repeated": repeated}

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values. A refused comparison has both medians and no ratio."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "variants"}
        own["layers"] = {workload: list(map(asdict, times)) for workload, times in self.layers.items()}
        return own | {"noise": self.noise, "variants": [asdict(v) | self._derived(v) for v in self.variants]}

    def _derived(self, variant: Variant) -> dict[str, Any]:
        peer, ratio = self.fastest_peer(variant.workload, variant.compute), self.comparison(variant)
        comparison = None
        if peer is not None and ratio is not None:
            comparison = {"peer": peer.label, "median": variant.median, "peer_median": peer.median}
            comparison |= {"refusal": ratio.refusal} if ratio.refusal else asdict(ratio)
        return {
            "label": variant.label, "median": variant.median if variant.measured else None, "memory": variant.memory,
            "agrees": self.agrees(variant), "fastest_peer": variant is peer, "comparison": comparison,
        }  # fmt: skip

    def write(self, path: Path | str) -> None:
        """Write the report as JSON. Raises RunError if the file can't be written."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        atomic.write_bytes(path, text.encode())

    @classmethod
    def read(cls, path: Path | str) -> BenchReport:
        """The report that `write` wrote. Raises FormatError if it is none, DataError if it can't be read."""
        try:
            record = records.read(path, _File)  # what is computed from the measurements is left out
            own = _own(record, cls) | {"variants": [_own(variant, Variant) for variant in record["variants"]]}
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


def _own(values: Any, kind: type) -> dict[str, Any]:
    """The values that are fields of a dataclass."""
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


def as_text(report: BenchReport, width: int = WIDTH) -> str:
    """The report as text, `width` characters wide: a table a workload."""
    return render(report_parts(report), width)


def report_parts(report: BenchReport) -> list[Table | str]:
    """The report as lines of text and tables, one for each workload."""
    counts = {len(variant.blocks) for variant in report.variants if variant.measured}
    steps = {block.steps for variant in report.variants for block in variant.blocks}
    blocks, steps = (" to ".join(map(str, dict.fromkeys((min(n), max(n))))) if n else "no" for n in (counts, steps))
    parts: list[Table | str] = [
        report.summary,
        f"Times are medians of {blocks} blocks of {steps} steps, contenders in turn.",
    ]
    header = HEADER if any(variant.energy for variant in report.variants) else HEADER[:-1]
    for workload in report.workloads:
        rows = [_row(report, variant)[: len(header)] for variant in report.of(workload)]
        parts += [f"\n{workload}: {Workload.parse(workload).description}", Table(header, rows, right=True)]
    for workload, times in report.layers.items():
        parts += ["", layer_table(workload, times)]
    noise = report.noise
    parts.append(
        f"{noise['blocks']} blocks; {noise['noisy']} of them noisy (other processes used more than "
        f"{report.config['foreign_limit']:.0%} of the cores even in the quietest attempt), {noise['repeated']} "
        "attempts thrown away. Memory: peak of the steps minus memory after the imports; peak of the whole process."
    )
    parts.append(energy_note(report.energy))
    refusals = (ratio.refusal for ratio in map(report.comparison, report.variants) if ratio and ratio.refusal)
    parts += [ADVICE[refusal] for refusal in dict.fromkeys(refusals)]
    for name, packages in report.not_installed.items():
        parts.append(f"{name}: not installed (needs {', '.join(packages)}).")
    for variant in report.variants:
        if variant.error is not None:
            parts.append(f"{variant.workload} {variant.label} failed:\n{variant.error}")
        elif not report.agrees(variant):
            numbers = " ".join(f"{number:.5g}" for number in variant.probe)
            parts.append(f"{variant.workload} {variant.label}: computes other numbers: {numbers}")
    return parts


def _row(report: BenchReport, variant: Variant) -> list[str]:
    if not variant.measured:
        return [variant.label, "failed" if variant.error else "no blocks", *[""] * 8]
    low, _, high = quartiles(variant.seconds)
    peer, ratio = report.fastest_peer(variant.workload, variant.compute), report.comparison(variant)
    compared = "fastest peer" if variant is peer else ""
    if not report.agrees(variant):
        compared = "computes other numbers"
    elif peer and ratio:
        compared = str(ratio) if peer.compute == variant.compute else f"{ratio}, to {peer.label}"
    sizes, times = (variant.memory, variant.memory_process), (variant.import_seconds, variant.first_step_seconds)
    return [
        variant.label, milliseconds(variant.median), f"{milliseconds(low)} – {milliseconds(high)}", compared,
        f"{sum(block.noisy for block in variant.blocks)} of {len(variant.blocks)}",
        *("" if size is None else f"{size / MB:.0f}" for size in sizes),
        *("" if seconds is None else f"{seconds:.2f}" for seconds in times), joules(variant.energy),
    ]  # fmt: skip


def layer_table(workload: str, times: Sequence[LayerTime]) -> Table:
    """A row for each layer, and one for the sum."""
    total = LayerTime("all", sum(each.serial for each in times), sum(each.device for each in times))
    rows = [
        (each.layer, *(f"{1e3 * s:,.3f}" for s in (each.serial, each.device)), f"{each.ratio:,.1f}")
        for each in (*times, total)
    ]
    title = f"{workload}, by layer: serial C on one core, and the launches on the device"
    return Table(("layer", "serial ms", "device ms", "serial / device"), rows, title, right=True)


def energy_note(facts: EnergyFacts) -> str:
    """A sentence on how energy was counted."""
    text = f"Energy: {facts.get('source', NOT_MEASURED)}."
    if (idle := facts.get("idle_watts")) is not None:
        text += f" Without work it takes {idle:.3g} W, which are not subtracted."
    return text


def joules(energy: Energy | None) -> str:
    """Joules of a step; empty if they were not measured."""
    return as_joules(energy.joules) if energy else ""


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value < 100 else f"{value:.0f}"


def as_markdown(report: BenchReport) -> str:
    """Command, machine and date, then a table: a row a workload and type, a column a contender at its best: the median
    of its fastest variant, the memory of its steps, joules of a step where they were counted, and the ratio of the
    subject's time to its time, unless the spread forbids it. What the joules are follows the table."""
    contenders = dict.fromkeys(variant.contender for variant in report.variants)
    columns = sorted(contenders, key=lambda name: name != report.subject)
    rows = []
    for workload in report.workloads:
        types = report.types(workload)
        for compute in types:
            work = f"`{workload}`: {Workload.parse(workload).description}" + f", {compute}" * (len(types) > 1)
            rows.append([work, *(_cell(report, workload, name, compute) for name in columns)])
    table = Table(["work", *columns], rows).to_markdown()
    table += "".join(f"\n{layer_table(*each).to_markdown()}" for each in report.layers.items())
    note = f"\n{energy_note(report.energy)}\n" if any(variant.energy for variant in report.variants) else ""
    return f"`{report.command}`: {report.summary}\n\n{table}{note}"


def _cell(report: BenchReport, workload: str, contender: str, compute: str) -> str:
    """The fastest variant in a type. A peer that hasn't the type is shown at its best in another, which is named."""
    own, found = (report.agreeing(workload, compute, name) for name in (report.subject, contender))
    if contender != report.subject and not any(
        v.compute == compute and v.contender != report.subject for v in report.of(workload)
    ):
        found = found or report.agreeing(workload, contender=contender)
    if not found:
        return "–"
    variant = found[0]
    how = ", ".join(filter(None, (variant.compute * (variant.compute != compute), variant.name, variant.environment)))
    text = f"{milliseconds(variant.median)} ms"
    text += f", {variant.memory / MB:.0f} MB" if variant.memory is not None else ""
    text += f", {joules(variant.energy)} J" if variant.energy else ""
    text += f" ({how})" if how else ""
    return text if not own or variant is own[0] else f"{text}<br>{compare(own[0].seconds, variant.seconds)}"


def draw_chart(report: BenchReport) -> Figure:
    """A panel a workload, a line a variant: its time over that of the subject's fastest variant (or of the fastest of
    all) in the same rounds, on a logarithmic axis. A dot is the median, a bar goes from quartile to quartile; a ratio
    that is refused has no dot.

    Raises DataError if nothing was measured.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = [(workload, variants) for workload in report.workloads if (variants := report.agreeing(workload))]
    if not panels:
        raise DataError("There is nothing to draw: no contender was measured. The report's table says why.")
    heights = [len(variants) * LINE + TITLE for _, variants in panels]
    figure = figures.canvas(figures.WIDTH, sum(heights) + 0.5)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (workload, variants) in zip(grid, panels, strict=True):
        reference = [*report.agreeing(workload, contender=report.subject), variants[0]][0]
        for place, variant in enumerate(variants):
            color = figures.BLUE if variant.contender == report.subject else figures.ORANGE
            if variant is reference:
                axes.plot(1, place, "D", color=color)
                continue
            found = compare(variant.seconds, reference.seconds)
            line = figures.GRAY if found.refusal else color
            axes.plot((found.low, found.high), (place, place), color=line, linewidth=3)
            if not found.refusal:
                axes.plot(found.ratio, place, "o", color=color)
        axes.axvline(1, color=figures.GRAY, linewidth=1, zorder=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(2, subs=(1, 1.5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(len(variants) - 0.5, -0.5)
        figures.style(axes, bars=True)
        axes.set_title(workload, fontsize=10, loc="left")
        labels = [f"{variant.label}: {milliseconds(variant.median)} ms" for variant in variants]
        axes.set_yticks(range(len(variants)), labels, fontsize=10)
    grid[-1].set_xlabel(f"time / {report.subject}'s (less is faster)")
    return figure


def save_chart(report: BenchReport, path: Path | str) -> None:
    """Write the chart as a PNG. Raises RunError if that can't be done, DataError if nothing was measured."""
    figures.saved(draw_chart(report), path)
