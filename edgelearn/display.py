"""How objects and bytes appear in notebooks, reports and errors; memory is in MB, 10^6 bytes, as in budgets."""

from __future__ import annotations

import unicodedata
from html import escape
from importlib import import_module
from math import ceil
from typing import ClassVar


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
        if self.drawn_by:
            module, _, function = self.drawn_by.partition(":")
            return getattr(import_module(module), function)(self)
        return f"<pre>{escape(str(self))}</pre>"


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
