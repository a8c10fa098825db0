"""Answers of commands: the text that people read, and the JSON that `--json` prints and `--save` writes."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from edgelearn import atomic
from edgelearn.display import escaped, plain
from edgelearn.tables import Table

command_line = ""  # as it was typed


@dataclass(frozen=True)
class Answer:
    """Result of a command: `record`, a dictionary or a dataclass or a list of these, and the exit status (default 0).
    parser.FIELDS describes the entries of records."""

    record: Any
    status: int = 0


class Escaped:
    """A text stream that escapes control characters: names and texts of files, runs and clients may hold them.

    Arguments:
    - `stream`: receives the escaped text. A progress bar, which moves the cursor, writes to it directly.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(escaped(text))

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def answer(options: argparse.Namespace) -> int:
    """Run a command and return its exit status. With --json, standard output has the record alone: what the command
    prints besides goes to standard error."""
    as_json = getattr(options, "json", False)
    with redirect_stdout(Escaped(sys.stderr if as_json else sys.stdout)), redirect_stderr(Escaped(sys.stderr)):
        found = options.execute(options)
    if not isinstance(found, Answer):
        found = Answer(found)
    if as_json:
        print(json.dumps(plain(found.record), indent=1, allow_nan=False))
    if getattr(options, "save", None):
        atomic.write_json(options.save, plain(found.record))
    return found.status


def log(text: str) -> None:
    """Print progress, beside what is answered."""
    print(text, file=sys.stderr)


def width() -> int:
    """Columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def show(table: Table, markdown: bool = False) -> None:
    """Print a table, no line longer than the terminal is wide, or in Markdown."""
    print(table.to_markdown() if markdown else table.to_text(width()), end="")


def shown(results: Any, markdown: bool = False, plot: Path | None = None) -> dict[str, Any]:
    """Print the table of results, draw them into the file `plot` if it is given, and return their record."""
    show(results.table(), markdown)
    if plot:
        results.plot(plot)
    return results.to_dict()
