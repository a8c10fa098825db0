"""Results of a comparison: a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn import atomic
from edgelearn.compile.combination import Combination
from edgelearn.display import Displayed
from edgelearn.errors import RunError
from edgelearn.lab.runs import Interval, Run, figures, interval, tables, wilson_interval
from edgelearn.lab.statistics import median
from edgelearn.units import MB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEMORY = ("planned", "allocated", "process")
ABSENT = "–"


@dataclass(frozen=True)
class CombinationResult:
    """The trainings of a combination.

    Arguments:
    - `combination`: the settings.
    - `runs`: the finished ones, by seed.
    - `reasons`: why others are missing, by seed.
    """

    combination: Combination
    runs: dict[int, Run] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """The metric that trainings are compared by: "accuracy", or "loss" where nothing is right or wrong."""
        return (
            "accuracy"
            if self.runs and all("accuracy" in run.record["results"] for run in self.runs.values())
            else "loss"
        )

    @property
    def values(self) -> dict[int, float]:
        """The test accuracy, or the loss, by seed."""
        return {seed: run.record["results"][self.measure] for seed, run in self.runs.items()}

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """(mean, low, high) of `values`: Student's 95 % interval over the seeds; of one seed Wilson's over the
        examples, or only the value. None if no training has finished."""
        values = list(self.values.values())
        if not values:
            return None
        if len(values) > 1:
            found: Interval = interval(values)
            return found.mean, found.mean - found.margin, found.mean + found.margin
        results = next(iter(self.runs.values())).record["results"]
        if "correct" in results:
            return values[0], *wilson_interval(results["correct"], results["total"])
        return values[0], values[0], values[0]

    def bytes(self, kind: str) -> int | None:
        """Memory of one of MEMORY: the largest over the seeds; None if it isn't known."""
        sizes = [run.record["results"]["memory"].get(kind) for run in self.runs.values()]
        return max((size for size in sizes if size is not None), default=None)

    def seconds(self, of: str) -> float | None:
        """Median over the seeds of the seconds of a "step" or an "epoch"."""
        times = [run.record[f"{of}_seconds"] for run in self.runs.values()]
        return median(times) if times else None

    @property
    def reason(self) -> str:
        """Why trainings are missing, empty if none is."""
        return "; ".join(dict.fromkeys(self.reasons.values()))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "combination": self.combination.to_dict(), "runs": {str(seed): run.id for seed, run in self.runs.items()},
            self.measure: {str(seed): value for seed, value in self.values.items()}, "interval": self.interval,
            "bytes": {kind: self.bytes(kind) for kind in MEMORY},
            "seconds": {of: self.seconds(of) for of in ("step", "epoch")},
            "reasons": {str(seed): reason for seed, reason in self.reasons.items()},
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class CombinationResults(Displayed):
    """Combinations compared on one network, data and seeds.

    Arguments:
    - `network`: its name.
    - `device`: its name.
    - `rows`: a result for each combination, in the order given.
    - `interrupted`: the comparison was stopped; the same call goes on (default False).
    - `int8_speed`: a sentence on the time of int8 on the device (default none).
    """

    network: str
    device: str
    rows: list[CombinationResult]
    interrupted: bool = False
    int8_speed: str = ""

    @property
    def headline(self) -> str:
        done = sum(len(row.runs) for row in self.rows)
        return f"of {len(self.rows)} combinations on '{self.network}': {done} trainings" + (
            ", interrupted" if self.interrupted else ""
        )

    @property
    def header(self) -> tuple[str, ...]:
        measure = next((row.measure for row in self.rows if row.runs), "accuracy")
        return ("combination", measure, *MEMORY, "ms/step", "s/epoch")

    def cells(self) -> list[tuple[str, ...]]:
        """Rows under `header`, memory in MB."""
        return [_cells(row) for row in self.rows]

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = 80) -> str:
        """A table of plain text, no line longer than `width` characters."""
        found = tables.table(f"'{self.network}' on {self.device}", self.header)
        for row in self.cells():
            found.add_row(*row)
        for column in found.columns[1:]:
            column.no_wrap = True
        return tables.render([found, *self._notes()], width)

    def to_csv(self) -> str:
        """The table as comma-separated values."""
        return tables.to_csv(self.cells(), self.header)

    def to_latex(self) -> str:
        """The table in LaTeX, for the package booktabs."""
        return tables.to_latex(self.cells(), self.header)

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), self.header) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def _notes(self) -> list[str]:
        several = any(len(row.runs) > 1 for row in self.rows)
        over = "Student's, over the seeds" if several else "Wilson's, over the test examples"
        notes = [f"{row.combination.name}: {row.reason}" for row in self.rows if row.reasons]
        notes.append(
            f"Intervals are at 95 %: {over}. Memory in MB: as planned on the device, as allocated there, and the most "
            f"that this whole process held from the second step on."
        )
        if self.int8_speed and any(row.combination.formats.stores_integers for row in self.rows if row.runs):
            notes.append(self.int8_speed)
        return notes + (["Interrupted: the same call goes on where it stopped."] if self.interrupted else [])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "network": self.network, "device": self.device, "interrupted": self.interrupted,
            "combinations": [row.to_dict() for row in self.rows],
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy with intervals, memory, and time of a step, a line for each combination; write a PNG to `path`.
        Raises RunError if nothing has finished."""
        rows = [row for row in self.rows if row.runs]
        if not rows:
            raise RunError("There is nothing to draw: no training of this comparison has finished.")
        figure = figures.canvas(11, 1.6 + 0.5 * len(rows))
        left, middle, right = figure.subplots(1, 3, sharey=True)
        share = rows[0].measure == "accuracy"
        for place, row in enumerate(rows):
            mean, low, high = row.interval or (0.0, 0.0, 0.0)
            scale = 100 if share else 1
            ends = [[scale * (mean - low)], [scale * (high - mean)]]
            left.errorbar([scale * mean], [place], xerr=ends, fmt="o", color=figures.BLUE, capsize=4)
            right.barh(place, 1e3 * (row.seconds("step") or 0), height=0.55, color=figures.GREEN)
        colors = (figures.BLUE, figures.ORANGE, figures.GRAY)
        for number, (kind, color) in enumerate(zip(MEMORY, colors, strict=True)):
            sizes = [(row.bytes(kind) or 0) / MB for row in rows]
            middle.barh(
                [y + 0.25 * (number - 1) for y in range(len(rows))], sizes, height=0.22, color=color, label=kind
            )
        left.set_yticks(range(len(rows)), [row.combination.name for row in rows])
        left.invert_yaxis()
        figure.legend(loc="outside upper center", ncols=len(MEMORY), fontsize=9, frameon=False)
        words = (f"Test {rows[0].measure}" + (" (%)" if share else ""), "Memory (MB)", "A step (ms)")
        for axes, word in zip((left, middle, right), words, strict=True):
            axes.set_xlabel(word, fontsize=11)
            axes.grid(axis="x", color="#dddddd", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
        if path is not None:
            atomic.write_bytes(path, figures.to_png(figure))
        return figure


def _cells(row: CombinationResult) -> tuple[str, ...]:
    if row.interval is None:
        return row.combination.name, "failed" if row.reasons else ABSENT, *[ABSENT] * 5
    sizes = (row.bytes(kind) for kind in MEMORY)
    memory = (ABSENT if size is None else f"{size / MB:,.2f}" for size in sizes)
    step, epoch = row.seconds("step") or 0.0, row.seconds("epoch") or 0.0
    return row.combination.name, _value(row), *memory, f"{1e3 * step:,.1f}", f"{epoch:,.2f}"


def _value(row: CombinationResult) -> str:
    assert row.interval is not None
    mean, low, high = row.interval
    share = row.measure == "accuracy"
    unit = " %" if share else ""

    def write(value: float) -> str:
        return f"{100 * value:.1f}" if share else f"{value:.4f}"

    if len(row.runs) > 1:
        return f"{write(mean)} ± {write(high - mean)}{unit}"
    return f"{write(mean)}{unit}" + (f" ({write(low)} to {write(high)})" if high > low else "")
