"""`edgelearn keywords personal` and `check`: personalisation, and claims held against measurements."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from .answer import Answer
from .keywords_common import add_data
from .numbers import whole

ENGLISH = "english"


def add_personal(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what", nargs="*", default=[ENGLISH],
        help="english (the network of EDGELEARN_DATA), or folders of runs of `train`",
    )  # fmt: skip
    add("--shots", type=whole(1), nargs="+", default=[1, 3, 5], help="clips of each word (default: 1 3 5)")
    add("--users", action="store_true", help="print a line for each user, highest error first")
    add_data(parser)
    parser.set_defaults(act=_personal)


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="folders of runs of `train arabic`, for each split and method"
    )
    add_data(parser)
    parser.set_defaults(act=_check)


def _personal(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.keywords.personalisation import (
        english_users,
        personalise_english,
        personalise_run,
        to_table,
        users_table,
    )

    found = []
    for what in options.what:
        if what == ENGLISH:
            reports = personalise_english(english_users(options.data, options.device), options.shots)
        else:
            reports = personalise_run(what, options.shots, options.data, options.device)
        print(what, *(users_table(report) for report in reports if options.users), to_table(reports), sep="\n")
        found += [{"what": what} | asdict(report) for report in reports]
    return Answer(found)


def _check(options: argparse.Namespace) -> Answer:
    from edgelearn.errors import RunError
    from edgelearn.experiments.claim import status
    from edgelearn.experiments.keywords.check import check
    from edgelearn.lab.runs import RunStore

    runs = [RunStore(Path(folder).parent).open(Path(folder).name) for folder in options.runs]
    if unfinished := [run.id for run in runs if run.status != "finished"]:
        raise RunError(f"{unfinished[0]} isn't finished. Finish it: edgelearn keywords train --resume {unfinished[0]}")
    if others := [run.id for run in runs if (run.record["kind"], run.config.get("task")) != ("keywords", "arabic")]:
        raise RunError(f"{others[0]} is not a run of `edgelearn keywords train arabic`: leave it out.")
    found = []
    for claim in check(runs, options.data, options.device):
        print(f"{claim.word}  {claim.claim}: {claim.measured}", flush=True)
        found.append(claim)
    return Answer([asdict(claim) for claim in found], status(found))
