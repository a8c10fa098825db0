"""Results of runs: the names that comparisons and figures look for, all optional, and how they are written.

Accuracies are shares in [0, 1], memory is in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Number
from typing import Any, TypedDict

from edgelearn.display import MB, as_joules
from edgelearn.errors import DataError
from edgelearn.statistics import wilson_interval

ABSENT = "–"
INTERVAL = "accuracy_interval"  # a result that is shown with the accuracy
MAX_ITEMS = 12  # of a list of results; of a longer one, such as the rounds of a federation, the last one is shown
MAX_NUMBERS = 4  # of a list of numbers
_INTERVAL = {"mean", "margin", "count"}  # entries of statistics.Interval
_SHARES = ("accuracy", "auroc", "error_rate", "false_rejects", "false_accepts", "precision", "recall", "f1")


class Memory(TypedDict, total=False):
    """Bytes."""

    planned: int | None
    allocated: int | None
    process: int | None


class Results(TypedDict, total=False):
    """Results that comparisons and figures read. A run may have others too."""

    correct: int | None
    total: int | None
    accuracy: float | None
    loss: float | None
    epochs: int | None
    seconds: float | None
    interval: list[float] | None
    memory: Memory | None
    joules: float | None
    energy: dict[str, Any]


class _Epoch(TypedDict):
    epoch: int


class Row(_Epoch, total=False):
    """A row of the history; it may have other entries too."""

    loss: float | None
    accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    seconds: float | None
    joules: float | None


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
    settings = [key for key in keys_of(items) if all(isinstance(item.get(key, ""), str | int) for item in items)]
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
        return percent(value)
    if name.endswith(("bytes", "traffic")) or "memory." in name:
        return _megabytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def outcome(results: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Results of a run by name, those that all have (`COMMON`) first; `last` is the last row of its history, whose
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


def headline(results: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The first of a run's results: its accuracy, if it has one, else its loss, or what it has."""
    found = outcome(results, last)
    if found["accuracy"] is not None:
        return percent(found["accuracy"])
    if found["loss"] is not None:
        return f"loss {found['loss']:.4g}"
    others = (item for item in found.items() if item[0] not in COMMON and isinstance(item[1], Mapping | float))
    return next((f"{name.rpartition('.')[2]} {result_text(name, value)}" for name, value in others), ABSENT)


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested entries by dotted keys, such as `optimizer.lr`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def mapping(value: Any) -> Mapping[str, Any]:
    """An entry of a record that should be an object; empty for anything else, since a record may hold anything."""
    return value if isinstance(value, Mapping) else {}


def keys_of(mappings: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    """The keys of all mappings, each once, in order."""
    return dict.fromkeys(key for mapping in mappings for key in mapping)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _megabytes(value: float) -> str:
    return f"{value / MB:,.1f} MB"


def setting_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
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
KNOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "status": ("status", str),
    "accuracy": ("accuracy (95 % interval)", percent),
    "accuracy_interval": ("", str),
    "correct": ("correct", str),
    "loss": ("loss", "{:.4f}".format),
    "epochs": ("epochs", str),
    "seconds": ("time", _seconds),
    "joules": ("energy", _joules),
    "energy.source": ("energy counter", str),
    "planned": ("memory planned", _megabytes),
    "allocated": ("memory allocated", _megabytes),
    "process": ("memory of the process", _megabytes),
    "device": ("device", str),
}
COMMON = [name for name in KNOWN if name not in ("status", "device", "energy.source")]


def named_result(name: str, value: Any) -> tuple[str, str]:
    """Label and text of a result of this name."""
    label, show = KNOWN.get(name, (name, None))
    return label, show(value) if show and value is not None else result_text(name, value)
