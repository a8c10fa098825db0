"""All results of a run as one flat table, whatever kind of run it is.

Comparison of runs: differences of their configurations, and their results.

A run as one JSON document that needs nothing else: record and history, without its folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn import atomic
from edgelearn.display import Displayed
from edgelearn.errors import DataError, RunError
from edgelearn.lab.statistics import wilson_interval
from edgelearn.units import MB

from . import figures
from .run import Memory, Results, Row, Run
from .store import RunSummary
from .tables import render, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_ITEMS = 12  # of a list of results; of a longer one, such as the rounds of a federation, the last one is shown
MAX_NUMBERS = 4  # of a list of numbers
_INTERVAL = {"mean", "margin", "count"}  # entries of statistics.Interval
_SHARES = ("accuracy", "auroc", "error_rate", "false_rejects", "false_accepts", "precision", "recall", "f1")


def flat_results(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Results by name: nested ones as "memory.planned", those of a list as "reports[cosine, shots 5].accuracy". Values
    are numbers, texts, lists of numbers, and intervals: {"mean", "margin", "count"}."""
    found: dict[str, Any] = {}
    for key, value in results.items():
        found |= _flat_value(value, f"{prefix}{key}")
    return found


def result_text(name: str, value: Any) -> str:
    """A result of this name as text: shares in percent, bytes in MB, intervals as mean ± margin."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        if value.keys() >= _INTERVAL:
            return f"{result_text(name, value['mean'])} ± {result_text(name, value['margin'])}"
        return ", ".join(map(str, value))
    if isinstance(value, list):
        shown = ", ".join(result_text(name, each) for each in value[-MAX_NUMBERS:])
        return shown if len(value) <= MAX_NUMBERS else f"{len(value)} values, the last: {shown}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith(_SHARES) and 0 <= value <= 1:
        return f"{100 * value:.1f} %"
    if name.endswith(("bytes", "traffic")) or "memory." in name:
        return f"{value / MB:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _flat_value(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping) and not value.keys() >= _INTERVAL:
        return flat_results(value, f"{name}.")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(item, Mapping) for item in value):
            return _flat_list(value, name)
        return {name: [each if isinstance(each, Number | str) else str(each) for each in value]} if value else {}
    return {name: value}


def _flat_list(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Results of a list. Texts and whole numbers that all share are given once; those that differ name a result, unless
    they don't tell all apart: then its number does."""
    if len(items) > MAX_ITEMS:
        return flat_results(items[-1], f"{name}[{len(items)}].")
    settings = [
        key
        for key in dict.fromkeys(key for item in items for key in item)
        if all(isinstance(item.get(key, ""), str | int) for item in items)
    ]
    shared = [key for key in settings if len(items) > 1 and all(item.get(key) == items[0].get(key) for item in items)]
    telling = [key for key in settings if key not in shared]
    labels = [", ".join(_setting(key, item[key]) for key in telling if key in item) for item in items]
    if len(set(labels)) < len(items) or len(items) == 1:
        labels, telling = [str(number) for number in range(1, len(items) + 1)], []
    found = flat_results({key: items[0][key] for key in shared}, f"{name}.")
    for label, item in zip(labels, items, strict=True):
        rest = {key: value for key, value in item.items() if key not in (*shared, *telling)}
        found |= flat_results(rest, f"{name}[{label}].")
    return found


def _setting(key: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{key} {value}"


ABSENT = "–"


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Runs compared.

    - `ids`: of the runs; `configs`, `histories`: in the same order, config keys flat ("optimizer.lr").
    - `differences`: config keys whose values differ.
    - `results`: by name, a value for each run, None where a run has none: first those that trainings of classifiers
      share, then every other result that one of the runs has (see `metrics.flat`). Accuracies are shares in [0, 1],
      `accuracy_interval` is Wilson's at 95 %, memory is in bytes.
    """

    ids: list[str]
    configs: list[dict[str, Any]]
    differences: list[str]
    results: dict[str, list[Any]]
    histories: list[list[dict[str, Any]]]

    @property
    def headline(self) -> str:
        return f"of {', '.join(self.ids)}"

    def __str__(self) -> str:
        return self.to_text()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the histories, as plain values."""
        configs = list(zip(self.ids, self.configs, strict=True))
        differences = {key: {run: config[key] for run, config in configs if key in config} for key in self.differences}
        return {"runs": self.ids, "differences": differences, "results": self.results}

    def to_text(self, width: int = 80) -> str:
        """Two tables of plain text, no line longer than `width` characters."""
        names = [str(number) for number in range(1, len(self.ids) + 1)]
        legend = table("Runs", ["", "run"])
        for name, run in zip(names, self.ids, strict=True):
            legend.add_row(name, run)
        config = table("What differs in the config", ["key", *names])
        for key in self.differences:
            config.add_row(key, *(_value(config[key]) if key in config else ABSENT for config in self.configs))
        results = table("Results", ["", *names])
        for name, values in self.results.items():
            if name == "accuracy_interval" or all(value is None for value in values):
                continue
            show = _ROWS.get(name) or partial(result_text, name)
            cells = [show(value) if value is not None else ABSENT for value in values]
            if name == "accuracy":
                cells = [
                    cell if interval is None else f"{cell}\n({_percent(interval[0])} to {_percent(interval[1])})"
                    for cell, interval in zip(cells, self.results["accuracy_interval"], strict=True)
                ]
            results.add_row(_LABELS.get(name, name), *cells)
        if not self.differences:
            return render([legend, "The configs don't differ.", results], width)
        return render([legend, config, results], width)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The learning curves over each other; raises RunError if no run has an epoch yet."""
        names = [f"{number}: {run}" for number, run in enumerate(self.ids, start=1)]
        return figures.plot_overlay(dict(zip(names, self.histories, strict=True)), path)


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare runs, in the order given. Raises RunError if there are none, FormatError if one is damaged."""
    if not runs:
        raise RunError("There is nothing to compare: give at least one run.")
    statuses = [run.status for run in runs]  # also rereads the records
    histories = [run.history() for run in runs]
    configs = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    outcomes = [
        {"status": status, **_outcome(run.record, rows)}
        for run, status, rows in zip(runs, statuses, histories, strict=True)
    ]
    names = dict.fromkeys(name for outcome in outcomes for name in outcome)
    return Comparison(
        ids=[run.id for run in runs],
        configs=configs,
        differences=[key for key in keys if _differs([config.get(key, _MISSING) for config in configs])],
        results={name: [outcome.get(name) for outcome in outcomes] for name in names},
        histories=histories,
    )


def list_table(summaries: Sequence[RunSummary], width: int = 80) -> str:
    """The list of runs as plain text, and the faults of damaged ones below it."""
    if not summaries:
        return "No runs yet."
    runs = table(None, ["run", "status", "started (UTC)", "epochs", "result", "MB", "device"])
    for summary in summaries:
        runs.add_row(
            summary.id,
            summary.status,
            summary.started[:16].replace("T", " "),
            str(summary.epochs),
            _headline(summary),
            f"{summary.bytes / MB:,.1f}",
            str(summary.device.get("name", ABSENT)),
        )
    problems = [f"{summary.id}: {summary.problem}" for summary in summaries if summary.problem]
    return render([runs, *problems], width)


MEMORY = tuple(Memory.__annotations__)
_MISSING = object()
_LABELS = {
    "accuracy": "accuracy (95 % interval)",
    "seconds": "time",
    "planned": "memory planned",
    "allocated": "memory allocated",
    "process": "memory of the process",
}


def _headline(summary: RunSummary) -> str:
    """The first of a run's results: its accuracy, if it has one, else its loss, or what it has."""
    accuracy, _ = _accuracy(summary.results, summary.last)
    if accuracy is not None:
        return _percent(accuracy)
    loss = summary.results.get("loss", summary.last.get("val_loss", summary.last.get("loss")))
    if loss is not None:
        return f"loss {loss:.4g}"
    for name, value in _others(summary.results, summary.last).items():
        if isinstance(value, Mapping | float):
            return f"{name.rpartition('.')[2]} {result_text(name, value)}"
    return ABSENT


def _outcome(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    results = record.get("results") or {}
    last = rows[-1] if rows else {}
    memory = results.get("memory") or {}
    accuracy, interval = _accuracy(results, last)
    return {
        "accuracy": accuracy,
        "accuracy_interval": interval,
        "correct": _correct(results),
        "loss": results.get("loss", last.get("val_loss", last.get("loss"))),
        "epochs": results.get("epochs", last.get("epoch")),
        "seconds": results.get("seconds"),
        "planned": memory.get("planned"),
        "allocated": memory.get("allocated"),
        "process": memory.get("process"),
        "device": (record.get("device") or {}).get("name"),
        **_others(results, last),
    }


def _others(results: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """The results besides those above; of a run that hasn't finished, the metrics of its last epoch."""
    known = {*Results.__annotations__, *Row.__annotations__}
    found = flat_results({name: value for name, value in results.items() if name not in known})
    found |= flat_results({"memory": {k: v for k, v in (results.get("memory") or {}).items() if k not in MEMORY}})
    return flat_results({name: value for name, value in last.items() if name not in known}) | found


def _accuracy(results: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
    """(test accuracy, its interval), from counts of examples; without counts the last epoch's accuracy, no interval."""
    correct, total = results.get("correct"), results.get("total")
    if correct is not None and total:
        with suppress(TypeError, DataError):  # a record may hold anything
            return correct / total, wilson_interval(correct, total)
    return results.get("accuracy", last.get("val_accuracy")), None


def _correct(results: Mapping[str, Any]) -> str | None:
    if results.get("correct") is None or results.get("total") is None:
        return None
    return f"{results['correct']} of {results['total']}"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as `optimizer.lr`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _differs(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seconds(value: float) -> str:
    if not 60 <= value < inf:  # a record may hold any number
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def _memory(value: int) -> str:
    return f"{value / MB:,.1f} MB"


# How results that are known by name are written; the accuracy's interval is printed with it.
_ROWS: dict[str, Callable[[Any], str]] = {
    "status": str,
    "accuracy": _percent,
    "correct": str,
    "loss": lambda value: f"{value:.4f}",
    "epochs": str,
    "seconds": _seconds,
    "planned": _memory,
    "allocated": _memory,
    "process": _memory,
    "device": str,
}


EXPORT_FORMAT = "edgelearn run 1"


def export(run: Run) -> dict[str, Any]:
    """Record and history as plain JSON values.

    Standard JSON has no NaN and no infinity, so they become null. Raises FormatError if the run is damaged.
    """
    status = run.status  # also rereads the record
    document = {
        "format": EXPORT_FORMAT,
        "run": run.record | {"id": run.id, "status": status},
        "history": run.history(),
    }
    return _finite(json.loads(atomic.to_json(document)))


def write_export(run: Run, path: str | Path) -> None:
    """Write `export(run)` to `path` in one step; raises RunError if that can't be done."""
    atomic.write_json(path, export(run))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
