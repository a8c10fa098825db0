"""Tables of plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(title: str | None, columns: Sequence[str]) -> Table:
    """An empty table with `columns`, of texts that fold where the line ends."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        found.add_column(column, overflow="fold")
    return found


def html(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table of HTML, of texts or numbers."""

    def line(cells: Sequence[object], tag: str) -> str:
        style = ' style="text-align: left"'
        return "<tr>" + "".join(f"<{tag}{style}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f"<table>{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def render(parts: Sequence[Table | str], width: int) -> str:
    """Tables and lines of text below each other, no line longer than `width` characters."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n") + "\n"
