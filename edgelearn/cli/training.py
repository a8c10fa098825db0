"""What commands that train share: a run is begun, or gone on with by --resume."""

from __future__ import annotations

import argparse

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.experiments.experiment import Experiment
from edgelearn.lab.runs import RunStore
from edgelearn.train import ProgressBar


def add_runs_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="DIR", help="where runs are kept (default: EDGELEARN_RUNS, else ./runs)")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """--runs and --resume."""
    add_runs_folder(parser)
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with an interrupted run, by default the newest"
    )


def train(job: type[Experiment], config: Config, options: argparse.Namespace) -> int:
    """Exit status of a training of `config`, or of the one that options say to go on with. Raises RunError for settings
    beside --resume."""
    store = RunStore(options.runs)
    if options.resume is None:
        return 0 if job.start(config, store, [ProgressBar()]) else 130
    chosen = config.to_dict()
    if given := [name for name, value in job.config_type().to_dict().items() if chosen[name] != value]:
        raise RunError(
            f"'{given[0].replace('_', '-')}' can't be changed on the way: a resumed run keeps its configuration. "
            f"Leave it out, or start a new run."
        )
    return 0 if job.resume(options.resume or store.newest_unfinished(job.kind), store, [ProgressBar()]) else 130
