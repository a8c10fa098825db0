"""Tables: one structure for whatever is shown in rows, and the one place that writes it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from edgelearn.display import Displayed, escaped, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Drawn

_NUMBER = re.compile(
    r"[-−+±<>≈~ ]*\d[\d.,]*(e[-+]?\d+)?( ?[%×]| ?[kMGT]?[BW]| ?(bytes|[nµm]?s|ms|min|h|points|GFLOP/s|GB/s|FLOPs?))?"
    r"( \([^)]*\))?"  # its interval
)
_EMPTY = ("", "–", "-")
_FAILED = ("fail", "failed")
WIDTH = 80  # columns of text, where nothing else is asked for
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of texts or numbers below a header. Everything that is shown as a table gives one, and this is the one place
    that writes it: as text, HTML, Markdown, CSV or LaTeX.

    Arguments:
    - `header`: names of the columns.
    - `rows`: a cell for each column; an empty row leaves a line free, in text alone.
    - `title`: a line above (default none).
    - `notes`: lines below (default none); not part of CSV, LaTeX and Markdown.
    - `right`: numbers, at the right edge of all columns but the first (default False).
    - `optional`: columns that text leaves out where there is no room, in this order (default none).
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    right: bool = False
    optional: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<Table of {plural(len(self.rows), 'row')}>"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """Plain text, no line longer than `width` characters; it breaks no word."""
        return render([self], width)

    def to_html(self) -> str:
        """A table of HTML, and its notes. Numbers stand at the right edge of their columns; a failure is marked. What
        is wider than the page scrolls within its own box, which the keyboard reaches."""
        numeric = {n for n in range(1, len(self.header or max(self.rows, key=len, default=()))) if self._is_numeric(n)}

        def line(cells: Sequence[object], tag: str) -> str:
            return f"<tr>{''.join(_cell(str(cell), tag, n in numeric) for n, cell in enumerate(cells))}</tr>"

        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        head = f"<thead>{line(self.header, 'th')}</thead>" if any(self.header) else ""
        body = "".join(line(row, "td") for row in self.rows if row)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        table = f"<table class='el-table'>{head}<tbody>{body}</tbody></table>"
        return f"{title}{_scrolling(table, self._name)}{notes}"

    @property
    def _name(self) -> str:
        """The name that a screen reader gives it: the title, else its columns, else its first row."""
        names = self.header if any(self.header) else next(iter(self.rows), ())
        return self.title or ", ".join(filter(None, map(str, names)))

    def _is_numeric(self, column: int) -> bool:
        """True if a column holds numbers, with or without units."""
        cells = [str(row[column]).strip() for row in self.rows if len(row) > column]
        return self.right or (any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells if cell not in _EMPTY))

    _repr_html_ = to_html

    def to_markdown(self) -> str:
        """A table in Markdown."""
        lines = (self.header, ["---"] * len(self.header), *filter(None, self.rows))
        return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)

    def to_csv(self) -> str:
        """Comma-separated values, lines ending in "\\n"."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *filter(None, self.rows)])
        return buffer.getvalue()

    def to_latex(self) -> str:
        """A tabular environment of LaTeX with the lines of the package booktabs."""

        def line(cells: Sequence[object]) -> str:
            return " & ".join("".join(_LATEX.get(letter, letter) for letter in str(cell)) for cell in cells) + r" \\"

        start = rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}"
        body = "\n".join(line(row) for row in self.rows if row)
        return f"{start}\n\\toprule\n{line(self.header)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


class Tabular(Displayed):
    """Base of results that are shown as one table: `table()` gives it."""

    def table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """The table as plain text, no line longer than `width` characters."""
        return self.table().to_text(width)

    def to_csv(self) -> str:
        """The table as comma-separated values."""
        return self.table().to_csv()

    def to_latex(self) -> str:
        """The table in LaTeX, for the package booktabs."""
        return self.table().to_latex()

    def _repr_html_(self) -> str:
        return self.table().to_html()


def _scrolling(content: str, name: str) -> str:
    """HTML in a box that scrolls sideways where it has no room, by the keyboard too. `name`: what a screen reader calls
    the box. Its style stands in it, since a saved notebook has no style sheet."""
    style = "max-width: 100%; overflow-x: auto"
    label = escape(" ".join(f"Table: {name}".split()))
    return f"<div class='el-scroll' style='{style}' tabindex='0' role='region' aria-label='{label}'>{content}</div>"


def _cell(text: str, tag: str, numeric: bool) -> str:
    """A cell of HTML. Its alignment stands in it, since a saved notebook has no style sheet."""
    style = "text-align: right; white-space: nowrap" if numeric else "text-align: left; overflow-wrap: normal"
    kind, shown = " class='el-number'" if numeric else "", escape(text)
    if not text.strip():
        tag = "td"  # above a column without a name: a screen reader would announce an empty header
    if text.strip().lower() in _FAILED:  # white on red is read in both themes
        shown = f"<b style='background: #b00020; color: #ffffff; padding: 0 0.4em; border-radius: 2px'>{shown}</b>"
    return f'<{tag}{kind} style="{style}">{shown}</{tag}>'


def render(parts: Sequence[Table | str], width: int = WIDTH) -> str:
    """Tables and lines of text below each other, no line longer than `width` characters but for control
    characters, which are escaped."""
    from rich.console import Console

    buffer = io.StringIO()
    plain = dict.fromkeys(("force_terminal", "force_jupyter", "markup", "emoji", "highlight"), False)
    console = Console(file=buffer, width=width, color_system=None, **plain)
    for part in parts:
        if isinstance(part, str):
            console.print(part)
            continue
        console.print(_fitted(_drawn(part), console, width, list(part.optional)))
        for note in part.notes:
            console.print(note)
    return escaped("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n") + "\n")


def _drawn(table: Table) -> Drawn:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Drawn

    found = Drawn(title=table.title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(table.header):
        found.add_column(column, overflow="fold", justify="right" if table.right and number else "left")
    for row in table.rows:
        if row:
            found.add_row(*map(str, row))
        else:
            found.add_section()
    return found


def _fitted(found: Drawn, console: Console, width: int, optional: list[str]) -> Drawn | str:
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
