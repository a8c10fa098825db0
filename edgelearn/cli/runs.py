"""List the runs, newest first; or show one, or export it."""

from __future__ import annotations

import argparse
import json

from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore, export, list_table, write_export

from .tables import width
from .training import add_runs_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="show this run (its id or the start of it) as JSON")
    parser.add_argument("--export", metavar="FILE", help="write it to one JSON file instead")
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> None:
    store = RunStore(options.runs)
    if options.export and options.run is None:
        raise RunError("The command names no run to export: put its id, or the start of it, before --export.")
    if options.run is None:
        found = store.list()
        print(list_table(found, width()) if found else f"No runs in {store.root} yet.")
    elif options.export:
        write_export(store.open(options.run), options.export)
    else:
        print(json.dumps(export(store.open(options.run)), indent=1))
