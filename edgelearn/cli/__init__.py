"""The `edgelearn` command."""

from __future__ import annotations

import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence

from edgelearn import __version__
from edgelearn.display import escaped
from edgelearn.errors import EdgelearnError, UsageError

from . import answer
from .parser import Parser, make_parser

COMMANDS = {  # the first words of commands, and the modules that have them
    name: f"edgelearn.cli.{module}"
    for name, module in {
        "devices": "machine", "doctor": "machine", "flowers": "training", "finetune": "training", "cifar10": "training",
        "depth": "comparisons", "inspect": "models", "convert": "models", "plan": "memory", "runs": "runs",
        "compare": "runs", "predict": "runs", "sweep": "runs", "precision": "precision", "memory": "memory",
        "keywords": "keywords", "federated": "federated", "bundle": "models",
        "bench": "machine", "profile": "machine", "tune": "machine",
        "completion": "machine", "characters": "sequences", "write": "sequences", "activity": "sequences",
        "language": "sequences", "adapt": "comparisons", "intents": "sequences", "personal": "comparisons",
    }.items()
}  # fmt: skip
_NO_NAMES = {errno.ENAMETOOLONG, errno.ELOOP}  # found wherever a name first meets the file system


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 an error that was explained, 2 wrong usage, 130 interrupted."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        return _end(2, error)
    except EdgelearnError as error:
        return _end(1, error)
    except KeyboardInterrupt:
        return _end(130, "interrupted")
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _NO_NAMES:
            raise
        return _end(1, f"{str(error.filename)[:60]}… can't be a file's name: {error.strerror}. Name another file.")


def full_parser(given: Sequence[str] = tuple(COMMANDS)) -> Parser:
    """The parser of all commands, with the options of those `given` (default: all)."""
    return make_parser(__version__, COMMANDS, given)


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--version"
    given = list(COMMANDS) if first in ("-h", "--help") else [first]
    options = full_parser(given).parse_args(arguments)
    answer.command_line = shlex.join(["edgelearn", *arguments])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines, also into a pipe, whose reader wants to follow; and names of files that no encoding has, escaped.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return answer.answer(options)


def _end(status: int, reason: object) -> int:
    print(escaped(f"edgelearn: {reason}"), file=sys.stderr)
    return status
