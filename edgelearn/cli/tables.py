"""Tables as commands print them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from edgelearn.lab.runs.tables import render, table


def width() -> int:
    """Columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False, optional: Sequence[str] = ()
) -> None:
    """Print a table as wide as the terminal.

    Arguments:
    - `markdown`: in Markdown.
    - `optional`: columns that are left out where there is no room.
    """
    if markdown:
        print("\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)))
        return
    lines = table(None, header)
    for row in rows:
        lines.add_row(*row)
    print(render([lines], width(), optional))
