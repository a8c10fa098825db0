"""Runs side by side: differences of their configurations, and all results as one flat table; export of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn import atomic
from edgelearn.display import MB, Displayed, as_joules
from edgelearn.errors import DataError, RunError
from edgelearn.statistics import wilson_interval
from edgelearn.tables import WIDTH, Table, render

from . import figures
from .run import Memory, Results, Row, Run
from .store import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABSENT = "–"
EXPORT_FORMAT = "edgelearn run 1"
MAX_ITEMS = 12  # of a list of results; of a longer one, such as the rounds of a federation, the last one is shown
MAX_NUMBERS = 4  # of a list of numbers
_INTERVAL = {"mean", "margin", "count"}  # entries of statistics.Interval
_SHARES = ("accuracy", "auroc", "error_rate", "false_rejects", "false_accepts", "precision", "recall", "f1")


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Runs compared.

    - `ids`: of the runs; `configs`, `histories`: in the same order, config keys flat ("optimizer.lr").
    - `differences`: config keys whose values differ.
    - `results`: by name, a value for each run, None where a run has none: first those that trainings of classifiers
      share, then every other result that one of the runs has (see `flat_results`). Accuracies are shares in [0, 1],
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

    def to_text(self, width: int = WIDTH) -> str:
        """Two tables of plain text, no line longer than `width` characters."""
        names = [str(number) for number in range(1, len(self.ids) + 1)]
        configs = [
            (key, *(_config_text(config.get(key, ABSENT)) for config in self.configs)) for key in self.differences
        ]
        intervals = self.results.get("accuracy_interval", [])
        results = []
        for name, values in self.results.items():
            if name == "accuracy_interval" or all(value is None for value in values):
                continue
            label, show = _KNOWN.get(name, (name, None))
            cells = [ABSENT if v is None else show(v) if show else result_text(name, v) for v in values]
            if name == "accuracy":
                ends = ["" if i is None else f"\n({_percent(i[0])} to {_percent(i[1])})" for i in intervals]
                cells = [cell + end for cell, end in zip(cells, ends, strict=True)]
            results.append((label, *cells))
        differing = Table(["key", *names], configs, "What differs in the config")
        legend = Table(["", "run"], list(zip(names, self.ids, strict=True)), "Runs")
        parts = [legend, differing if configs else "The configs don't differ.", Table(["", *names], results, "Results")]
        return render(parts, width)

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
    configs = [dict(_settings(run.config)) for run in runs]
    outcomes = []
    for run, status, rows in zip(runs, statuses, histories, strict=True):
        outcome = _outcome(run.record.get("results") or {}, rows[-1] if rows else {})
        device = (run.record.get("device") or {}).get("name")
        known = {name: outcome.pop(name) for name in _COMMON}
        outcomes.append({"status": status, **known, "device": device, **outcome})
    return Comparison(
        ids=[run.id for run in runs],
        configs=configs,
        differences=[key for key in _keys(configs) if any(_at(c, key) != _at(configs[0], key) for c in configs)],
        results={name: [outcome.get(name) for outcome in outcomes] for name in _keys(outcomes)},
        histories=histories,
    )


def list_table(summaries: Sequence[RunSummary], width: int = WIDTH) -> str:
    """The list of runs as plain text, and the faults of damaged ones below it."""
    if not summaries:
        return "No runs yet."
    rows = [
        (s.id, s.status, s.started[:16].replace("T", " "), s.epochs, _headline(s), f"{s.bytes / MB:,.1f}",
         s.device.get("name", ABSENT))
        for s in summaries
    ]  # fmt: skip
    problems = [f"{s.id}: {s.problem}" for s in summaries if s.problem]
    header = ("run", "status", "started (UTC)", "epochs", "result", "MB", "device")
    return Table(header, rows, notes=problems).to_text(width)


def export(run: Run) -> dict[str, Any]:
    """A run as one JSON document that needs nothing else: record and history, without its folder.

    Standard JSON has no NaN and no infinity, so they become null. Raises FormatError if the run is damaged.
    """
    status = run.status  # also rereads the record
    document = {"format": EXPORT_FORMAT, "run": run.record | {"id": run.id, "status": status}, "history": run.history()}
    return _finite(json.loads(atomic.to_json(document)))


def write_export(run: Run, path: str | Path) -> None:
    """Write `export(run)` to `path` in one step; raises RunError if that can't be done."""
    atomic.write_json(path, export(run))


def flat_results(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Results by name: nested ones as "memory.planned", those of a list as "reports[cosine, shots 5].accuracy". Values
    are numbers, texts, lists of numbers, and intervals: {"mean", "margin", "count"}."""
    found: dict[str, Any] = {}
    for key, value in results.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not value.keys() >= _INTERVAL:
            found |= flat_results(value, f"{name}.")
        elif isinstance(value, str) or not isinstance(value, Sequence):
            found[name] = value
        elif value and all(isinstance(item, Mapping) for item in value):
            found |= _flat_list(value, name)
        elif value:
            found[name] = [each if isinstance(each, Number | str) else str(each) for each in value]
    return found


def _flat_list(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Results of a list. Texts and whole numbers that all share are given once; those that differ name a result, unless
    they don't tell all apart: then its number does."""
    if len(items) > MAX_ITEMS:
        return flat_results(items[-1], f"{name}[{len(items)}].")
    settings = [key for key in _keys(items) if all(isinstance(item.get(key, ""), str | int) for item in items)]
    shared = [key for key in settings if len(items) > 1 and all(item.get(key) == items[0].get(key) for item in items)]
    telling = [key for key in settings if key not in shared]
    labels = [
        ", ".join(item[key] if isinstance(item[key], str) else f"{key} {item[key]}" for key in telling if key in item)
        for item in items
    ]
    if len(set(labels)) < len(items) or len(items) == 1:
        labels, telling = [str(number) for number in range(1, len(items) + 1)], []
    found = flat_results({key: items[0][key] for key in shared}, f"{name}.")
    for label, item in zip(labels, items, strict=True):
        rest = {key: value for key, value in item.items() if key not in (*shared, *telling)}
        found |= flat_results(rest, f"{name}[{label}].")
    return found


def result_text(name: str, value: Any) -> str:
    """A result of this name as text: shares in percent, bytes in MB, intervals as mean ± margin."""
    if value is None:
        return ABSENT
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
        return _percent(value)
    if name.endswith(("bytes", "traffic")) or "memory." in name:
        return _megabytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _outcome(results: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Results of a run by name, those that all have (`_COMMON`) first; `last` is the last row of its history, whose
    metrics stand in for those of a run that hasn't finished. The accuracy's interval is from counts of examples."""
    memory, (correct, total) = results.get("memory") or {}, (results.get("correct"), results.get("total"))
    accuracy, interval = results.get("accuracy", last.get("val_accuracy")), None
    if correct is not None and total:
        with suppress(TypeError, DataError):  # a record may hold anything
            accuracy, interval = correct / total, wilson_interval(correct, total)
    common = {
        "accuracy": accuracy, "accuracy_interval": interval,
        "correct": None if correct is None or total is None else f"{correct} of {total}",
        "loss": results.get("loss", last.get("val_loss", last.get("loss"))),
        "epochs": results.get("epochs", last.get("epoch")), "seconds": results.get("seconds"),
        "joules": results.get("joules"),
        **{name: memory.get(name) for name in Memory.__annotations__},
    }  # fmt: skip
    known = {*Results.__annotations__, *Row.__annotations__}
    others = flat_results({name: value for name, value in last.items() if name not in known})
    others |= flat_results({name: value for name, value in results.items() if name not in known})
    more = {name: size for name, size in memory.items() if name not in Memory.__annotations__}
    energy = {f"energy.{name}": value for name, value in (results.get("energy") or {}).items()}
    return common | others | flat_results({"memory": more}) | energy


def _headline(summary: RunSummary) -> str:
    """The first of a run's results: its accuracy, if it has one, else its loss, or what it has."""
    outcome = _outcome(summary.results, summary.last)
    if outcome["accuracy"] is not None:
        return _percent(outcome["accuracy"])
    if outcome["loss"] is not None:
        return f"loss {outcome['loss']:.4g}"
    others = (item for item in outcome.items() if item[0] not in _COMMON and isinstance(item[1], Mapping | float))
    return next((f"{name.rpartition('.')[2]} {result_text(name, value)}" for name, value in others), ABSENT)


def _settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as `optimizer.lr`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _keys(mappings: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(key for mapping in mappings for key in mapping)


def _at(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    return key in config, config.get(key)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _megabytes(value: float) -> str:
    return f"{value / MB:,.1f} MB"


def _config_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joules(value: float) -> str:
    return f"{as_joules(value)} J"


def _seconds(value: float) -> str:
    if not 60 <= value < math.inf:  # a record may hold any number
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


# Label and form of results that are known by name; the accuracy's interval is printed with it.
_KNOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "status": ("status", str),
    "accuracy": ("accuracy (95 % interval)", _percent),
    "accuracy_interval": ("", str),
    "correct": ("correct", str),
    "loss": ("loss", "{:.4f}".format),
    "epochs": ("epochs", str),
    "seconds": ("time", _seconds),
    "joules": ("energy", _joules),
    "planned": ("memory planned", _megabytes),
    "allocated": ("memory allocated", _megabytes),
    "process": ("memory of the process", _megabytes),
    "device": ("device", str),
}
_COMMON = [name for name in _KNOWN if name not in ("status", "device")]
