"""Tables of plain text that break no word: columns side by side where they fit, else rows below each other."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from edgelearn.display import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
}  # fmt: skip


def table(title: str | None, columns: Sequence[str], right: bool = False) -> Table:
    """An empty table with `columns`; `right`: numbers, at the right edge of all columns but the first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        found.add_column(column, overflow="fold", justify="right" if right and number else "left")
    return found


def html(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table of HTML, of texts or numbers."""

    def line(cells: Sequence[object], tag: str) -> str:
        style = ' style="text-align: left"'
        return "<tr>" + "".join(f"<{tag}{style}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f"<table>{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def to_csv(rows: Iterable[Sequence[object]], header: Sequence[str]) -> str:
    """A table as comma-separated values, lines ending in "\\n"."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()


def to_latex(rows: Iterable[Sequence[object]], header: Sequence[str]) -> str:
    """A table as a tabular environment of LaTeX with the lines of the package booktabs."""

    def line(cells: Sequence[object]) -> str:
        return " & ".join("".join(_LATEX.get(letter, letter) for letter in str(cell)) for cell in cells) + r" \\"

    head, body = line(header), [line(row) for row in rows]
    parts = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", ""])


def render(parts: Sequence[Table | str], width: int, optional: Sequence[str] = ()) -> str:
    """Tables and lines of text below each other, no line longer than `width` characters but for control
    characters, which are escaped. `optional`: columns that are left out where there is no room, in this order."""
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
        console.print(part if isinstance(part, str) else _fitted(part, console, width, list(optional)))
    return escaped("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n") + "\n")


def _fitted(found: Table, console: Console, width: int, optional: list[str]) -> Table | str:
    """The table with columns that `width` has room for, each as wide as its longest word at least; else `_stacked`."""
    from rich.measure import Measurement

    columns = [[str(column.header), *map(str, column.cells)] for column in found.columns]
    widest = [max(len(line) for cell in cells for line in (cell.splitlines() or [""])) for cells in columns]
    least = [max(len(word) for cell in cells for word in (cell.split() or [""])) for cells in columns]
    around = Measurement.get(console, console.options.update_width(10**6), found).maximum - sum(widest)
    room = width - around
    if sum(least) > room:
        if any(found.padding):
            found.padding = (0, 0)
        elif left := [n for n, cells in enumerate(columns) if optional and cells[0] == optional[0]]:
            del found.columns[left[0]]
            optional = optional[1:]
        else:
            return _stacked(found, width)
        return _fitted(found, console, width, optional)
    sizes = list(widest)
    while sum(sizes) > room:  # narrow the widest column that can be narrowed, the first one last
        at = max((n for n in range(len(sizes)) if sizes[n] > least[n]), key=lambda n: (n > 0, sizes[n]))
        sizes[at] -= 1
    for column, size in zip(found.columns, sizes, strict=True):
        column.width, column.no_wrap, column.overflow = size, False, "fold"
    return found


def _stacked(found: Table, width: int) -> str:
    """A paragraph for each row: the first cell, and below it what the other columns say."""
    titles = [str(column.header) for column in found.columns]
    lines = [str(found.title)] if found.title else []
    for first, *cells in zip(*(map(str, column.cells) for column in found.columns), strict=True):
        lines += _wrapped(f"{titles[0]} {first}" if first.isdigit() else first, width, "")
        line = "   "
        for title, cell in zip(titles[1:], cells, strict=True):
            if not cell.strip():
                continue
            pair = " ".join(f"{title}: {cell};".split())
            if len(line) + 1 + len(pair) > width and line.strip():
                lines += _wrapped(line, width, "    ")
                line = "   "
            line += f" {pair}"
        lines += _wrapped(line.removesuffix(";"), width, "    ")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return wrap(
        text.strip(), width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False,
        break_long_words=any(len(word) + len(indent) + 2 > width for word in text.split()),
    )  # fmt: skip
