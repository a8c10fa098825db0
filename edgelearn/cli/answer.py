"""Answers of commands: values that `--json` prints and `--save` writes, beside the text that people read."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from edgelearn import atomic
from edgelearn.display import escaped


@dataclass(frozen=True)
class Answer:
    """Result of a command.

    Arguments:
    - `record`: a dictionary or a list of these; `fields.FIELDS` describes their entries.
    - `status`: exit status (default 0).
    """

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
        return found or 0
    if as_json:
        print(json.dumps(plain(found.record), indent=1, allow_nan=False))
    if getattr(options, "save", None):
        atomic.write_json(options.save, plain(found.record))
    return found.status


def plain(value: Any) -> Any:
    """`value` as JSON has it: arrays become lists; NaN and infinity, which JSON lacks, null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
