"""The `edgelearn` command."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys

from edgelearn import __version__
from edgelearn.errors import EdgelearnError

from . import (
    bench,
    compare,
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
    tune,
)

COMMANDS = {
    "devices": devices, "doctor": doctor, "flowers": flowers, "finetune": finetune, "inspect": inspect,
    "convert": convert, "runs": runs, "compare": compare, "predict": predict, "precision": precision, "memory": memory,
    "keywords": keywords, "federated": federated, "bench": bench, "profile": profile, "tune": tune,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 an error that was explained, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser("edgelearn", description="On-device learning on any OpenCL device.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        first_line = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=first_line, description=module.__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_arguments(command)
        command.set_defaults(execute=module.run)  # commands have an argument called run
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    options.command_line = shlex.join(["edgelearn", *arguments])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines, also into a pipe, whose reader wants to follow; and names of files that no encoding has, escaped.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        return options.execute(options) or 0
    except EdgelearnError as error:
        print(f"edgelearn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("edgelearn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
