"""List the runs, newest first; or show one, or export it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore, export, list_table, write_export

from .answer import Answer
from .tables import width
from .training import add_runs_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="show this run (its id or the start of it) as JSON")
    parser.add_argument("--export", metavar="FILE", help="write it to one JSON file instead")
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> Answer:
    store = RunStore(options.runs)
    if options.export and options.run is None:
        raise RunError("The command names no run to export: put its id, or the start of it, before --export.")
    if options.run is None:
        found = store.list()
        answer = Answer([asdict(each) for each in found])
        print(list_table(found, width()) if found else f"No runs in {store.root} yet.")
    elif options.export:
        answer = Answer(export(store.open(options.run)))
        write_export(store.open(options.run), options.export)
    else:
        answer = Answer(export(store.open(options.run)))
        print(json.dumps(answer.record, indent=1))
    return answer
