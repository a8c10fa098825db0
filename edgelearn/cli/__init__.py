"""The `edgelearn` command."""

from __future__ import annotations

import errno
import io
import os
import shlex
import sys

from edgelearn import __version__
from edgelearn.display import escaped
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


def _run(arguments: list[str]) -> int:
    parser = make_parser(COMMANDS, __version__)
    options = parser.parse_args(arguments)
    options.parser = parser
    options.command_line = shlex.join(["edgelearn", *arguments])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines, also into a pipe, whose reader wants to follow; and names of files that no encoding has, escaped.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return answer(options)


def _end(status: int, reason: object) -> int:
    print(escaped(f"edgelearn: {reason}"), file=sys.stderr)
    return status
