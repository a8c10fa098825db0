"""Options and code of all commands that train."""

from __future__ import annotations

import argparse

from edgelearn.errors import RunError
from edgelearn.experiments.experiment import Experiment
from edgelearn.lab.runs import RunStore
from edgelearn.train import ProgressBar

from .options import chosen, option, read_config


def add_runs_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="DIR", help="where runs are kept (default: EDGELEARN_RUNS, else ./runs)")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """--runs and --resume."""
    add_runs_folder(parser)
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with an interrupted run, by default the newest"
    )


def train(experiment: type[Experiment], options: argparse.Namespace) -> int:
    """Start a training, or resume the one that --resume names; returns the exit status. Raises RunError for settings
    that are given with --resume."""
    store = RunStore(options.runs)
    if options.resume is None:
        results = experiment.start(read_config(experiment.config_type, options), store, [ProgressBar()])
    else:
        if given := chosen(experiment.config_type, options):
            raise RunError(
                f"{option(next(iter(given)))} can't be changed: a resumed run keeps its configuration. Leave it out, "
                f"or start a new run."
            )
        name = options.resume or store.newest_unfinished(experiment.kind)
        results = experiment.resume(name, store, [ProgressBar()])
    return 130 if results is None else 0
