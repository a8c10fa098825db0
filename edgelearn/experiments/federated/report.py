"""Federations side by side: accuracy, and the bytes that it cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from edgelearn import atomic
from edgelearn.lab.runs import Run
from edgelearn.lab.runs.figures import PALETTE, to_png
from edgelearn.units import MB, megabytes

from .round_records import read_rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = ("run", "settings", "rounds", "accuracy", "ε", "MB up", "MB down", "left out", "client MB")
_REASONS = 5  # that a summary has
_SHOWN = ("strategy", "compress", "partition", "engine", "seed")  # settings that tell runs apart


def cells(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """The rows of a table of runs, under HEADER."""
    return [_row(run, label) for run, label in zip(runs, labels(runs), strict=True)]


def summary(run: Run) -> list[str]:
    """Return lines on a finished run: bytes, privacy, and which clients were left out, and why."""
    results, happened = run.record["results"], read_rounds(run)
    up, down = (megabytes(results["bytes"][way]["total"]) for way in ("up", "down"))
    lines = [f"Clients sent {up} and received {down}"]
    if "epsilon" in results:
        lines.append(f"Differential privacy: ε = {results['epsilon']:.2f} at δ = {results['delta']:g}")
    left_out = [(each["round"], client, why) for each in happened for client, why in each["left_out"].items()]
    if left_out:
        asked = len(left_out) + sum(len(each["clients"]) for each in happened)
        lines.append(f"Left out: {len(left_out)} of {asked} updates (edgelearn federated rounds {run.id} has all)")
        lines += [f"  round {number}, client {client}: {why}" for number, client, why in left_out[:_REASONS]]
    return lines


def labels(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, as a text for each; the strategy if there is none."""
    differing = [name for name in _SHOWN if len({run.config.get(name) for run in runs}) > 1] or ["strategy"]
    return [", ".join(str(run.config.get(name)) for name in differing) for run in runs]


def plot_bytes(runs: Sequence[Run], path: str | Path | None = None) -> Figure:
    """Draw test accuracy over the bytes that clients have sent.

    Arguments:
    - `runs`: federations; one that is still running is drawn as far as it is.
    - `path`: a PNG to write (default: none).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        accuracies = {row["epoch"]: 100 * row["val_accuracy"] for row in run.history() if "val_accuracy" in row}
        happened = read_rounds(run)
        sent = [total / MB for total in accumulate(each["up"]["total"] for each in happened)]
        known = [(x, accuracies[each["round"]]) for x, each in zip(sent, happened, strict=True)
                 if each["round"] in accuracies]  # fmt: skip
        axes.plot(*zip(*known, strict=True), "o-", color=PALETTE[number % len(PALETTE)], markersize=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("MB sent by clients")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    if path is not None:
        atomic.write_bytes(path, to_png(figure))
    return figure


def _row(run: Run, label: str) -> tuple[str, ...]:
    happened, results = read_rounds(run), run.record.get("results") or {}
    up, down = (sum(each[way]["total"] for each in happened) / MB for way in ("up", "down"))
    accuracy = f"{results['accuracy']:.2%}" if results else run.status
    left_out = sum(len(each["left_out"]) for each in happened)
    epsilon = f"{results['epsilon']:.2f}" if "epsilon" in results else "–"
    planned = f"{results['memory']['planned'] / MB:.2f}" if results else ""
    return run.id, label, str(len(happened)), accuracy, epsilon, f"{up:.3f}", f"{down:.3f}", str(left_out), planned
