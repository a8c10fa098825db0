"""edgelearn memory fit: which combination of precision, activation memory, micro-batch and layers fits a budget."""

from __future__ import annotations

import argparse
import sys

from edgelearn.lab.runs.tables import render, table

from . import names
from .answer import Answer
from .numbers import number, whole
from .tables import width


def add_fit(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    from edgelearn.train.planning import PRECISIONS

    parser.add_argument("network", type=names.network, help=names.NETWORK)
    parser.add_argument(
        "--budget", type=names.budget, required=True, metavar="SIZE",
        help="such as '20 MB' of device memory, '20 MB peak' of activations and workspace, or '8 MB stored'",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=whole(1), default=32, help="examples of a step (default: %(default)s)")
    parser.add_argument("--alpha", type=number(0), default=1.0, help="width of a network of edgelearn.models")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="those to try")
    parser.add_argument(
        "--trained", nargs="+", metavar="LAYERS",
        help="layers to train: patterns such as 'dense', or 'from LAYER' (default: all, the upper half, the last)",
    )  # fmt: skip
    parser.add_argument("--batchnorm", choices=("auto", "moving", "batch"), default="auto")
    names.add_device(parser)
    parser.set_defaults(act=fit)


def fit(options: argparse.Namespace) -> Answer:
    """Plan, and print; the exit status is 1 if nothing fits."""
    from edgelearn.train.combined import as_network
    from edgelearn.train.planning import HEADER, plan_for

    trained = [()] + [(pattern,) for pattern in options.trained] if options.trained else None
    found = plan_for(
        as_network(options.network, options.alpha), options.budget, options.batch_size, precision=options.precision,
        trained=trained, batchnorm=options.batchnorm, device=options.device,
        progress=lambda text: print(text, file=sys.stderr),
    )  # fmt: skip
    shown = table(found.title, HEADER)
    for row in found.cells():
        shown.add_row(*row)
    for column in shown.columns[1:]:
        column.no_wrap = True
    print(render([shown] if found.combinations else [found.title], width()), end="")
    print(render(found.notes, width()), end="")
    return Answer(found.to_dict(), 0 if found.combinations else 1)
