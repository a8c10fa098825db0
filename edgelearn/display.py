"""How objects and bytes appear in notebooks, reports, JSON and errors; memory is in MB, 10^6 bytes, as in budgets."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from math import ceil, isfinite
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np


class Displayed:
    """Base of objects that are more than their repr should tell: one line in lists and logs, `str(self)` in notebooks.

    Subclasses give `headline`, what follows the name of the class in that line. A dataclass needs `repr=False`.

    - `drawn_by`: "MODULE:FUNCTION" of a function that lies higher and returns the object as HTML (default "": none).
    """

    drawn_by: ClassVar[str] = ""

    @property
    def headline(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        module, _, function = self.drawn_by.partition(":")
        try:
            draw = getattr(import_module(module), function) if module else None
        except ModuleNotFoundError:  # of a package for notebooks, which is optional
            draw = None
        return draw(self) if draw else f"<pre>{escape(str(self))}</pre>"


def plain(value: Any) -> Any:
    """`value` as JSON has it: what its `to_dict` returns if it has that, dataclasses as dictionaries, arrays as lists;
    NaN and infinity, which JSON lacks, become null."""
    if callable(to_dict := getattr(value, "to_dict", None)):
        value = to_dict()
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class Recorded:
    """Base of results that JSON holds.

    Subclasses give `entries`: names of fields and of figures derived from them, in order. "NAME: ATTRIBUTE" is for one
    that has another name in JSON.
    """

    entries: ClassVar[tuple[str, ...]]

    def to_dict(self) -> dict[str, Any]:
        """The JSON-able record."""
        named = (entry.partition(": ") for entry in self.entries)
        return {name: plain(attrgetter(attribute or name)(self)) for name, _, attribute in named}


def escaped(text: str) -> str:
    """`text` with its control characters as \\x1b or \\u202e: a terminal would obey those of a name in a message."""

    def shown(character: str) -> str:
        kept = character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf")
        return character if kept else character.encode("unicode_escape").decode()

    return text if text.isprintable() else "".join(map(shown, text))


MB = 10**6
UNITS = (("GB", 10**9), ("MB", MB), ("kB", 10**3), ("bytes", 1))


def as_joules(joules: float) -> str:
    """Joules with three digits or more, without the unit."""
    return f"{joules:.3g}" if joules < 100 else f"{joules:,.0f}"


def megabytes(nbytes: int) -> str:
    """Bytes as text, rounded up, so that a budget of as much suffices: "12.35 MB", and with more digits below 1 MB."""
    if nbytes >= MB:
        return f"{ceil(nbytes / 10**4) / 100:,.2f} MB"
    return f"{ceil(nbytes / 10) / 10**5:.5f}".rstrip("0").rstrip(".") + " MB"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: "1 seed", "1,000 seeds", "0 batches". `nouns`: the plural, where it is irregular."""
    ending = "es" if noun.endswith(("s", "x", "sh", "tch", "nch")) else "s"
    return f"{count:,} {noun if count == 1 else nouns or noun + ending}"
