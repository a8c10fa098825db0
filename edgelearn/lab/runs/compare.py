"""Runs side by side: differences of their configurations, and all results as one flat table; export of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn import atomic
from edgelearn.display import Displayed
from edgelearn.errors import RunError
from edgelearn.tables import WIDTH, Table, render

from . import figures
from .results import (
    ABSENT,
    COMMON,
    INTERVAL,
    flat_settings,
    keys_of,
    mapping,
    named_result,
    outcome,
    percent,
    setting_text,
)
from .run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPORT_FORMAT = "edgelearn run 1"
_TELLING = 3  # settings in the short name of a run


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Runs compared.

    - `ids`: of the runs; `configs`, `histories`: in the same order, config keys flat ("optimizer.lr").
    - `differences`: config keys whose values differ.
    - `plans`, `facts`: in the order of the runs: entries of the plan, flat; versions, device, data and weights.
    - `names`: that readers gave the runs, "" for none.
    - `results`: by name, a value for each run, None where a run has none: first those that trainings of classifiers
      share, then every other result that one of the runs has (see `flat_results`). Accuracies are shares in [0, 1],
      `accuracy_interval` is Wilson's at 95 %, memory is in bytes.
    """

    ids: list[str]
    configs: list[dict[str, Any]]
    differences: list[str]
    results: dict[str, list[Any]]
    histories: list[list[dict[str, Any]]]
    plans: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

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
        """Tables of plain text, no line longer than `width` characters."""
        legend, settings, *others, results = self.tables()
        same = settings if settings.rows else "The configs don't differ."
        return render([legend, same, *(each for each in others if each.rows), results], width)

    @property
    def labels(self) -> list[str]:
        """A short name for each run: what its reader called it, else its settings that differ, else its id."""
        told = [key for key in self.differences if key != "seed"] or self.differences
        texts = [
            ", ".join(f"{key.rpartition('.')[2]} {setting_text(config.get(key, ABSENT))}" for key in told[:_TELLING])
            for config in self.configs
        ]
        named = [name or text for name, text in zip(self.names or [""] * len(texts), texts, strict=True)]
        return [text if text and named.count(text) == 1 else id_ for text, id_ in zip(named, self.ids, strict=True)]

    def tables(self) -> list[Table]:
        """The runs; what differs in the configuration, in the plan, in versions, device and data; the results. Each has
        a column for each run."""
        numbers = [str(number) for number in range(1, len(self.ids) + 1)]
        legend = Table(["", "run"], list(zip(numbers, self.ids, strict=True)), "Runs")
        settings = Table(["key", *numbers], _differing(self.configs, self.differences), "What differs in the config")
        plan = Table(["entry", *numbers], _differing(self.plans), "What differs in the plan")
        facts = Table(["entry", *numbers], _differing(self.facts), "What differs in versions, device and data")
        intervals, rows = self.results.get(INTERVAL, []), []
        for name, values in self.results.items():
            if name == INTERVAL or all(value is None for value in values):
                continue
            cells = [named_result(name, value)[1] for value in values]
            if name == "accuracy":
                ends = ["" if i is None else f"\n({percent(i[0])} to {percent(i[1])})" for i in intervals]
                cells = [cell + end for cell, end in zip(cells, ends, strict=True)]
            rows.append((named_result(name, None)[0], *cells))
        return [legend, settings, plan, facts, Table(["", *numbers], rows, "Results")]

    def rows(self) -> Table:
        """A row for each run: its id, its settings that differ, and its results, as they are."""
        names = [name for name, values in self.results.items() if any(value is not None for value in values)]
        header = ["run", *self.differences, *names]
        return Table(header, [
            [id_, *(config.get(key, "") for key in self.differences), *(self.results[name][at] for name in names)]
            for at, (id_, config) in enumerate(zip(self.ids, self.configs, strict=True))
        ])  # fmt: skip

    def to_csv(self) -> str:
        """A row for each run as comma-separated values."""
        return self.rows().to_csv()

    def to_latex(self) -> str:
        """The tables in LaTeX, for the package booktabs."""
        return "\n".join(table.to_latex() for table in self.tables() if table.rows)

    def _repr_html_(self) -> str:
        *differences, results = (table.to_html() if table.rows else "" for table in self.tables())
        return "".join(differences) + self._curves() + results

    def _curves(self) -> str:
        return figures.to_img(self.plot()) if any(self.histories) else ""

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
    configs = [dict(flat_settings(run.config)) for run in runs]
    outcomes = []
    for run, status, rows in zip(runs, statuses, histories, strict=True):
        found = outcome(run.record.get("results") or {}, rows[-1] if rows else {})
        device = (run.record.get("device") or {}).get("name")
        known = {name: found.pop(name) for name in COMMON}
        outcomes.append({"status": status, **known, "device": device, **found})
    return Comparison(
        ids=[run.id for run in runs],
        configs=configs,
        differences=_differences(configs),
        results={name: [each.get(name) for each in outcomes] for name in keys_of(outcomes)},
        histories=histories,
        plans=[dict(flat_settings(mapping(run.record.get("plan")))) for run in runs],
        facts=[_facts(run.record) for run in runs],
        names=[run.notes["name"] for run in runs],
    )


def export(run: Run) -> dict[str, Any]:
    """A run as one JSON document that needs nothing else: record and history, without its folder.

    Standard JSON has no NaN and no infinity, so they become null. Raises FormatError if the run is damaged.
    """
    status = run.status  # also rereads the record
    document = {"format": EXPORT_FORMAT, "run": run.record | {"id": run.id, "status": status}, "history": run.history()}
    return finite(json.loads(atomic.to_json(document)))


def write_export(run: Run, path: str | Path) -> None:
    """Write `export(run)` to `path` in one step; raises RunError if that can't be done."""
    atomic.write_json(path, export(run))


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, device, data and weights of a run."""
    device, data, weights = (mapping(record.get(name)) for name in ("device", "data", "weights"))
    own = {name: device[name] for name in ("platform", "driver", "kind", "compute_units") if name in device}
    described = {name: each["description"] for name, each in (("data", data), ("weights", weights))
                 if "description" in each}  # fmt: skip
    return dict(flat_settings({"environment": record.get("environment") or {}, "device": own, **described}))


def _differences(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ."""
    return [key for key in keys_of(mappings) if any(_at(each, key) != _at(mappings[0], key) for each in mappings)]


def _differing(mappings: Sequence[Mapping[str, Any]], keys: Sequence[str] | None = None) -> list[tuple[str, ...]]:
    """Rows of the values that differ."""
    keys = _differences(mappings) if keys is None else keys
    return [(key, *(_text(key, each.get(key, ABSENT)) for each in mappings)) for key in keys]


def _text(key: str, value: Any) -> str:
    """A value as it is shown; bytes of a plan with commas."""
    return f"{value:,}" if isinstance(value, int) and "bytes" in key else setting_text(value)


def _at(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    return key in config, config.get(key)


def finite(value: Any) -> Any:
    """`value` with null in place of NaN and infinity, which standard JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
