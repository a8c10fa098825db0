"""Tables as plain text that breaks no word, as HTML, CSV and LaTeX."""

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


def table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]] = (), right: bool = False
) -> Table:
    """A table for `render`. `right`: numbers, at the right edge of all columns but the first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        found.add_column(column, overflow="fold", justify="right" if right and number else "left")
    for row in rows:
        found.add_row(*map(str, row))
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

    start = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
    body = "\n".join(map(line, rows))
    return f"{start}\n\\toprule\n{line(header)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def to_markdown(rows: Iterable[Sequence[object]], header: Sequence[str]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (header, ["---"] * len(header), *rows))


def render(parts: Sequence[Table | str], width: int, optional: Sequence[str] = ()) -> str:
    """Tables and lines of text below each other, no line longer than `width` characters but for control
    characters, which are escaped. `optional`: columns that are left out where there is no room, in this order."""
    from rich.console import Console

    buffer = io.StringIO()
    plain = dict.fromkeys(("force_terminal", "force_jupyter", "markup", "emoji", "highlight"), False)
    console = Console(file=buffer, width=width, color_system=None, **plain)
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
            return _stacked(columns, str(found.title or ""), width)
        return _fitted(found, console, width, optional)
    sizes = list(widest)
    while sum(sizes) > room:  # narrow the widest column that can be narrowed, the first one last
        at = max((n for n in range(len(sizes)) if sizes[n] > least[n]), key=lambda n: (n > 0, sizes[n]))
        sizes[at] -= 1
    for column, size in zip(found.columns, sizes, strict=True):
        column.width, column.no_wrap = size, False
    return found


def _stacked(columns: Sequence[Sequence[str]], title: str, width: int) -> str:
    """A paragraph for each row: the first cell, and below it what the other columns say."""

    def wrapped(text: str, indent: str = "    ") -> list[str]:
        long = any(len(word) + len(indent) + 2 > width for word in text.split())
        return wrap(
            text.strip(), width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False,
            break_long_words=long,
        )  # fmt: skip

    (heading, *titles), *rows = zip(*columns, strict=True)
    lines = [title] if title else []
    for first, *cells in rows:
        lines += wrapped(f"{heading} {first}" if first.isdigit() else first, "")
        line = "   "
        for name, cell in zip(titles, cells, strict=True):
            if not cell.strip():
                continue
            pair = " ".join(f"{name}: {cell};".split())
            if len(line) + 1 + len(pair) > width and line.strip():
                lines += wrapped(line)
                line = "   "
            line += f" {pair}"
        lines += wrapped(line.removesuffix(";"))
    return "\n".join(lines) + "\n"
