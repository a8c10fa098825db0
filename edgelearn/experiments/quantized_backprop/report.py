"""A comparison as text, Markdown and picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from edgelearn.graph import Network
from edgelearn.graph.cost import Cost, convolutions, layer_cost, network_cost
from edgelearn.runs import figures, mean_and_deviation, median
from edgelearn.runs.tables import render, table

from .claims import KIB
from .config import FLOAT
from .sweep import Row
from .timing import Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 1 << 20
HEADER = (
    "quantized", "test accuracy", "seeds", "below fp32", "expected", "planned", "allocated", "process", "moved/step"
)  # fmt: skip
TIME_HEADER = ("step", "ms", "to current", "planned MiB", "moved MiB")


def cells(rows: Sequence[Row], expected: Sequence[Row] = ()) -> list[tuple[str, ...]]:
    """The rows of the table: mean and deviation over seeds, in percent; memory in MiB; bytes that a step moves."""
    plain = next((row for row in rows if row.arm == FLOAT), None)
    known = {row.arm: row for row in expected}
    return [_cells(row, plain, known.get(row.arm)) for row in rows]


def _cells(row: Row, plain: Row | None, expected: Row | None) -> tuple[str, ...]:
    shared = set(row.accuracies) & set(plain.accuracies) if plain else set()
    below = [100 * (plain.accuracies[seed] - row.accuracies[seed]) for seed in shared]
    memory, traffic = row.results.get("memory", {}), row.results.get("traffic")
    return (
        row.arm,
        spread(list(row.accuracies.values())) if row.accuracies else "",
        str(len(row.accuracies)) + (f", {len(row.diverged)} diverged" if row.diverged else ""),
        f"{mean_and_deviation(below)[0]:+.2f}" if below and row is not plain else "",
        spread(list(expected.accuracies.values())) if expected else "",
        *(f"{memory[name] / MIB:,.1f}" if memory else "" for name in ("planned", "allocated", "process")),
        f"{traffic / MIB:,.0f}" if traffic else "",
    )


def spread(shares: Sequence[float]) -> str:
    """ "81.23 ± 0.45" percent: mean and sample deviation."""
    mean, deviation = mean_and_deviation(shares)
    return f"{100 * mean:.2f}" + ("" if isnan(deviation) else f" ± {100 * deviation:.2f}")


def time_cells(times: Times) -> list[tuple[str, ...]]:
    """Milliseconds of a step, and the ratio to the step with ranges of its own: median and middle half."""
    rows = []
    for lane, seconds in times.seconds.items():
        beside = "integers, current" if lane.startswith("integers") else "current"
        ratio = ""
        if lane.endswith("in-hindsight") and beside in times.seconds:
            ratio = "{:.3f} ({:.3f} – {:.3f})".format(*times.ratio(lane, beside))
        sizes = (f"{found[lane] / MIB:,.1f}" for found in (times.peaks, times.traffic))
        rows.append((lane, f"{1e3 * median(seconds):.2f}", ratio, *sizes))
    return rows


COST_HEADER = ("convolution", "weights", "input", "output", "static", "dynamic", "saved")


def cost_cells(network: Network) -> list[tuple[str, ...]]:
    """KiB of each convolution by the formula, and of all."""
    costs = {name: layer_cost(network, name) for name in convolutions(network)}
    return [_cost_cells(*item) for item in (*costs.items(), ("all", network_cost(network)))]


def _cost_cells(name: str, cost: Cost) -> tuple[str, ...]:
    sizes = cost.weights / 8, cost.inputs / 8, cost.outputs / 8, cost.static_bytes, cost.dynamic_bytes
    return name, *(f"{size / KIB:,.1f}" for size in sizes), f"{cost.saving:.1%}"


def text(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = 110) -> str:
    """A plain table, no line longer than `width` characters."""
    found = table(None, header)
    for row in rows:
        found.add_row(*row)
    return render([found], width)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(rows: Sequence[Row], path: str | Path | None = None) -> Figure:
    """Test accuracies, a line for each row and a dot for each seed, the mean as a bar, that of the first row across."""
    return figures.plot_spread(
        {row.arm: list(row.accuracies.values()) for row in rows if row.accuracies}, "Test accuracy (%)", path
    )
