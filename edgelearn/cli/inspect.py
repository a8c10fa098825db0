"""Show what is in a model, operator by operator, before anything runs.

All operators that edgelearn doesn't have are listed, with their attributes and what works instead; the exit status is
then 1.
"""

from __future__ import annotations

import argparse

from .answer import Answer
from .convert import add_model, network_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.train.inspection import inspect

    found = inspect(
        options.model, network_of(options), inputs=tuple(options.inputs), outputs=tuple(options.outputs),
        input_shape=tuple(options.input_shape) if options.input_shape else None,
    )  # fmt: skip
    print(found)
    return Answer(found.to_dict(), 0 if found.supported else 1)
