"""Options and code of all commands that train."""

from __future__ import annotations

import argparse
from typing import Any

from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore
from edgelearn.train import ProgressBar

from .answer import Answer
from .parser import changed, read_config


def add_runs_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="DIR", help="where runs are kept (default: EDGELEARN_RUNS, else ./runs)")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """--runs and --resume."""
    add_runs_folder(parser)
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="continue an interrupted run (default: the newest)"
    )


def train(experiment: Any, options: argparse.Namespace) -> Answer:
    """Start a training, or resume the one that --resume names. Raises RunError for settings
    that are given with --resume."""
    store = RunStore(options.runs)
    config = read_config(experiment.config_type, options)
    if options.resume is None:
        results, name = experiment.start(config, store, [ProgressBar()]), None
    else:
        if given := changed(config):
            raise RunError(
                f"{given[0]} can't be changed: a resumed run keeps its configuration. Leave it out, or start a new run."
            )
        name = options.resume or store.newest_unfinished(experiment.kind)
        results = experiment.resume(name, store, [ProgressBar()])
    run = store.open(name) if name else store.open(store.list()[0].id)
    return Answer({"run": run.id, "status": run.status, "results": results}, 130 if results is None else 0)
