"""How objects appear in notebooks and logs."""

from __future__ import annotations

import unicodedata
from html import escape


class Displayed:
    """Base of objects that are more than their repr should tell: one line in lists and logs, `str(self)` in notebooks.

    Subclasses give `headline`, what follows the name of the class in that line. A dataclass needs `repr=False`.
    """

    @property
    def headline(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def escaped(text: str) -> str:
    """`text` with its control characters as \\x1b or \\u202e: a terminal would obey those of a name in a message."""

    def shown(character: str) -> str:
        kept = character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf")
        return character if kept else character.encode("unicode_escape").decode()

    return text if text.isprintable() else "".join(map(shown, text))
