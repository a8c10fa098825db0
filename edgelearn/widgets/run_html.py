"""A training's memory, last epoch, error and results as HTML."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from html import escape
from typing import Any

from edgelearn.errors import EdgelearnError
from edgelearn.experiments.experiment import Experiment
from edgelearn.lab.measure.memory import peak_resident_bytes
from edgelearn.lab.runs import Run, figures, tables

from .show import duration, size

_COLUMNS = {  # of a row of history, with the names that readers know
    "epoch": "epoch", "loss": "train loss", "accuracy": "train accuracy", "val_loss": "test loss",
    "val_accuracy": "test accuracy", "seconds": "time",
}  # fmt: skip


def memory_html(experiment: Experiment) -> str:
    """Bars for the memory planned, allocated now, and held by the process at its peak."""
    ledger = experiment.model.context.ledger
    bars = {
        "planned": (experiment.phases.peak_bytes, figures.BLUE, ""),
        "allocated": (ledger.held, figures.GREEN, f" (peak {size(ledger.peak)})"),
        "process, peak": (peak_resident_bytes(), figures.ORANGE, ""),
    }
    largest = max(nbytes for nbytes, _, _ in bars.values())
    lines = [
        f"<tr><td>{name}</td><td style='width: 12em'><div style='height: 0.9em; border-radius: 2px; "
        f"min-width: 1px; width: {100 * nbytes / largest:.1f}%; background: {color}'></div></td>"
        f"<td style='padding-left: 0.7em'>{size(nbytes)}{note}</td></tr>"
        for name, (nbytes, color, note) in bars.items()
    ]
    return f"<b>Memory</b><table>{''.join(lines)}</table>"


def epoch_html(row: Mapping[str, Any]) -> str:
    """A row of history as a table."""
    rows = [(label, _value(name, row[name])) for name, label in _COLUMNS.items() if row.get(name) is not None]
    return f"<b>Last epoch</b>{tables.html(rows)}"


def _value(name: str, value: Any) -> str:
    if name == "epoch":
        return str(value) if value else "0 (before training)"
    if name == "seconds":
        return f"{value:.2f} s"
    return f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4f}"


def error_html(error: BaseException) -> str:
    """An error with its text; with its traceback, too, if it isn't one of edgelearn's own."""
    text = escape(str(error))
    if not isinstance(error, EdgelearnError):
        trace = escape("".join(traceback.format_exception(error)))
        text += f"<details><summary>This was not foreseen: please report the details</summary>{trace}</details>"
    return (
        "<div style='border-left: 4px solid #D55E00; padding: 0.4em 0.8em; white-space: pre-wrap; line-height: 1.4'>"
        f"<b>{type(error).__name__}</b>: {text}</div>"
    )


def result_rows(run: Run) -> list[tuple[str, str]]:
    """The results of a finished run as rows of a table."""
    results = run.record["results"]
    low, high = results["interval"]
    correct, total, before = results["correct"], results["total"], run.record.get("before", {}).get("accuracy")
    rows = [("test accuracy", f"{correct} of {total}: {correct / total:.1%} (95 % interval {low:.1%} to {high:.1%})")]
    if before is not None:
        rows.append(("before training", f"{round(before * total)} of {total}: {before:.1%}"))
    memory = results["memory"]
    return [
        *rows,
        ("test loss", f"{results['loss']:.4f}"),
        ("epochs", str(results["epochs"])),
        ("time", duration(results["seconds"])),
        ("memory planned", size(memory["planned"])),
        ("memory allocated, peak", size(memory["allocated"])),
        ("memory of the process, peak", size(memory["process"])),
        ("device", run.record["device"]["name"]),
        ("run", run.id),
    ]
