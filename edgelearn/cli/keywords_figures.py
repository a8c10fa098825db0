"""What a user's own clips are worth, and every published figure held against what is there: `edgelearn keywords
personal` and `check`."""

from __future__ import annotations

import argparse

ENGLISH = "english"


def add_personal(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        default=[ENGLISH],
        help="english (the network of EDGELEARN_DATA), or folders of runs of `train`",
    )
    add("--shots", type=int, nargs="+", default=[1, 3, 5], help="clips of each word (default: 1 3 5)")
    add("--data", metavar="DIR", help="a folder with data sets and weights (default: EDGELEARN_DATA)")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    parser.set_defaults(act=_personal)


def _personal(options: argparse.Namespace) -> None:
    from edgelearn.experiments.keywords.embedding.personal import personalise_run
    from edgelearn.experiments.keywords.english import personalise_english
    from edgelearn.experiments.keywords.personal import to_table

    for what in options.what:
        if what == ENGLISH:
            found = personalise_english(options.shots, options.data, options.device)
        else:
            found = personalise_run(what, options.shots, options.data, options.device)
        print(what, to_table(found), sep="\n")
