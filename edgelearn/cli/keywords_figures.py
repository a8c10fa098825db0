"""What a user's own clips are worth, and every published figure held against what is there: `edgelearn keywords
personal` and `check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .numbers import whole

ENGLISH = "english"


def add_personal(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        default=[ENGLISH],
        help="english (the network of EDGELEARN_DATA), or folders of runs of `train`",
    )
    add("--shots", type=whole(1), nargs="+", default=[1, 3, 5], help="clips of each word (default: 1 3 5)")
    add("--users", action="store_true", help="a line for each user besides, who was worst off first")
    add("--data", metavar="DIR", help="a folder with data sets and weights (default: EDGELEARN_DATA)")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    parser.set_defaults(act=_personal)


def add_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="folders of runs of `train arabic`, for each split and method")
    add("--data", metavar="DIR", help="a folder with data sets and weights (default: EDGELEARN_DATA)")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    parser.set_defaults(act=_check)


def _personal(options: argparse.Namespace) -> None:
    from edgelearn.experiments.keywords.embedding.personal import personalise_run
    from edgelearn.experiments.keywords.english import personalise_english
    from edgelearn.experiments.keywords.personal import to_table, users_table

    for what in options.what:
        if what == ENGLISH:
            found = personalise_english(options.shots, options.data, options.device)
        else:
            found = personalise_run(what, options.shots, options.data, options.device)
        print(what, *(users_table(each) for each in found if options.users), to_table(found), sep="\n")


def _check(options: argparse.Namespace) -> int:
    from edgelearn.errors import RunError
    from edgelearn.experiments.keywords.check import check
    from edgelearn.lab.runs import RunStore

    failed = False
    runs = [RunStore(Path(folder).parent).open(Path(folder).name) for folder in options.runs]
    if unfinished := [run.id for run in runs if run.status != "finished"]:
        raise RunError(f"{unfinished[0]} isn't finished. Finish it: edgelearn keywords train --resume {unfinished[0]}")
    if others := [run.id for run in runs if (run.record["kind"], run.config.get("task")) != ("keywords", "arabic")]:
        raise RunError(
            f"{others[0]} is no run of `edgelearn keywords train arabic`, whose figures these are: leave it out."
        )
    for verdict in check(runs, options.data, options.device):
        print(f"{verdict.word}  {verdict.claim}: {verdict.measured}", flush=True)
        failed |= verdict.passed is False
    return int(failed)
