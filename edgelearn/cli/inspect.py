"""Show what is in a model, operator by operator, before anything runs.

All operators that edgelearn doesn't have are listed, with their attributes and what works instead; the exit status is
then 1.
"""

from __future__ import annotations

import argparse

from edgelearn import atomic

from .convert import add_model, network_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from edgelearn.train.inspection import inspect

    found = inspect(
        options.model, network_of(options), inputs=tuple(options.inputs), outputs=tuple(options.outputs),
        input_shape=tuple(options.input_shape) if options.input_shape else None,
    )  # fmt: skip
    print(atomic.to_json(found.to_dict(), 1) if options.json else found)
    return 0 if found.supported else 1
