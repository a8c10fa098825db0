"""Put runs side by side: what differs in their configurations, and how they ended."""

from __future__ import annotations

import argparse

from edgelearn.lab.runs import RunStore, compare

from .answer import Answer, width
from .parser import written
from .training import add_runs_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="ids, or starts of ids")
    parser.add_argument("--plot", type=written, metavar="PNG", help="draw the learning curves over each other")
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> Answer:
    store = RunStore(options.runs)
    comparison = compare([store.open(name) for name in options.run])
    print(comparison.to_text(width()))
    if options.plot:
        comparison.plot(options.plot)
    return Answer(comparison.to_dict())
