"""All results of a run as one flat table, whatever kind of run it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

from edgelearn.units import MB

MAX_ITEMS = 12  # of a list of results; of a longer one, such as the rounds of a federation, the last one is shown
MAX_NUMBERS = 4  # of a list of numbers
_INTERVAL = {"mean", "margin", "count"}  # entries of statistics.Interval
_SHARES = ("accuracy", "auroc", "error_rate", "false_rejects", "false_accepts", "precision", "recall", "f1")


def flat(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Results by name: nested ones as "memory.planned", those of a list as "reports[cosine, shots 5].accuracy". Values
    are numbers, texts, lists of numbers, and intervals: {"mean", "margin", "count"}."""
    found: dict[str, Any] = {}
    for key, value in results.items():
        found |= _flat(value, f"{prefix}{key}")
    return found


def text(name: str, value: Any) -> str:
    """A result of this name as text: shares in percent, bytes in MB, intervals as mean ± margin."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        if value.keys() >= _INTERVAL:
            return f"{text(name, value['mean'])} ± {text(name, value['margin'])}"
        return ", ".join(map(str, value))
    if isinstance(value, list):
        shown = ", ".join(text(name, each) for each in value[-MAX_NUMBERS:])
        return shown if len(value) <= MAX_NUMBERS else f"{len(value)} values, the last: {shown}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith(_SHARES) and 0 <= value <= 1:
        return f"{100 * value:.1f} %"
    if name.endswith(("bytes", "traffic")) or "memory." in name:
        return f"{value / MB:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _flat(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping) and not value.keys() >= _INTERVAL:
        return flat(value, f"{name}.")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(item, Mapping) for item in value):
            return _flat_list(value, name)
        return {name: [each if isinstance(each, Number | str) else str(each) for each in value]} if value else {}
    return {name: value}


def _flat_list(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Results of a list. Texts and whole numbers that all share are given once; those that differ name a result, unless
    they don't tell all apart: then its number does."""
    if len(items) > MAX_ITEMS:
        return flat(items[-1], f"{name}[{len(items)}].")
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
    found = flat({key: items[0][key] for key in shared}, f"{name}.")
    for label, item in zip(labels, items, strict=True):
        rest = {key: value for key, value in item.items() if key not in (*shared, *telling)}
        found |= flat(rest, f"{name}[{label}].")
    return found


def _setting(key: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{key} {value}"
