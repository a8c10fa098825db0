"""The `edgelearn` command."""

from __future__ import annotations

import io
import os
import shlex
import sys

from edgelearn import __version__
from edgelearn.errors import EdgelearnError, UsageError

from . import (
    bench,
    compare,
    completion,
    convert,
    devices,
    doctor,
    federated,
    finetune,
    flowers,
    inspect,
    keywords,
    memory,
    precision,
    predict,
    profile,
    runs,
    sweep,
    tune,
)
from .answer import answer
from .parser import make_parser

COMMANDS = {
    "devices": devices, "doctor": doctor, "flowers": flowers, "finetune": finetune, "inspect": inspect,
    "convert": convert, "runs": runs, "compare": compare, "predict": predict, "sweep": sweep, "precision": precision,
    "memory": memory, "keywords": keywords, "federated": federated, "bench": bench, "profile": profile, "tune": tune,
    "completion": completion,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 an error that was explained, 2 wrong usage, 130 interrupted."""
    parser = make_parser(COMMANDS, __version__)
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    options.parser = parser
    options.command_line = shlex.join(["edgelearn", *arguments])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines, also into a pipe, whose reader wants to follow; and names of files that no encoding has, escaped.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        return answer(options)
    except UsageError as error:
        print(f"edgelearn: {error}", file=sys.stderr)
        return 2
    except EdgelearnError as error:
        print(f"edgelearn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("edgelearn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
