"""Tables as commands print them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from edgelearn.lab.runs.tables import render, table


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False, width: int = 110) -> None:
    """Print a table, as wide as the terminal and at least `width` characters; `markdown`: in Markdown."""
    if markdown:
        print("\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)))
        return
    lines = table(None, header)
    for row in rows:
        lines.add_row(*row)
    print(render([lines], max(width, shutil.get_terminal_size((width, 24)).columns)))
