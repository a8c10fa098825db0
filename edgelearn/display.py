"""How objects appear in notebooks and logs."""

from __future__ import annotations

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
