"""List the runs, newest first; show or export one, train it again; delete some.

`edgelearn runs prune` lists the runs that failed, were interrupted or are damaged, `edgelearn runs prune --yes` deletes
them. What runs compare and predict with is gone with them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from edgelearn.display import megabytes
from edgelearn.errors import RunError, UsageError
from edgelearn.experiments import EXPERIMENTS
from edgelearn.extensions import import_object
from edgelearn.lab.runs import RunStore, RunSummary, export, list_table, write_export
from edgelearn.train import ProgressBar

from .answer import Answer, width
from .parser import whole
from .training import add_runs_folder

PRUNED = ("failed", "interrupted", "damaged")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "words", nargs="*", metavar="RUN",
        help="show this run (its id or the start of it) as JSON; or `delete RUN …`, `prune`, or `rerun RUN`, which "
        "trains with its configuration again",
    )  # fmt: skip
    add("--export", metavar="FILE", help="write it to one JSON file instead")
    add("--yes", action="store_true", help="prune: delete what it lists")
    add(
        "--days", type=whole(0), default=0, help="prune: only what nothing was written to for so many days (default: 0)"
    )
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> Answer:
    store = RunStore(options.runs)
    if not options.words:
        if options.export:
            raise RunError("The command names no run to export: put its id, or the start of it, before --export.")
        return _list(store)
    first, *names = options.words
    if first == "delete" and names:
        return _delete([_summary(store, name) for name in names], store)
    if first == "prune" and not names:
        return _prune(store, options)
    if first == "rerun" and len(names) == 1:
        return _rerun(store, names[0])
    if names or first in ("delete", "prune", "rerun"):
        raise UsageError(
            f"'{' '.join(options.words):.80}' is no command of runs. One run is shown at a time; or write "
            f"delete RUN [RUN …], prune, or rerun RUN."
        )
    answer = Answer(export(store.open(first)))
    if options.export:
        write_export(store.open(first), options.export)
    else:
        print(json.dumps(answer.record, indent=1))
    return answer


def _list(store: RunStore) -> Answer:
    found = store.list()
    if not found:
        print(f"No runs in {store.root} yet.")
        return Answer([])
    print(list_table(found, width()))
    print(f"{len(found)} runs in {store.root}, {megabytes(sum(each.bytes for each in found))}")
    return Answer([asdict(each) for each in found])


def _summary(store: RunStore, name: str) -> RunSummary:
    """The summary of a run. Raises RunError if there is none or more than one."""
    found = store.find(name)
    return next(each for each in store.list() if each.id == found)


def _delete(chosen: list[RunSummary], store: RunStore) -> Answer:
    for each in chosen:
        store.delete(each.id)
        print(f"{each.id} is deleted, {megabytes(each.bytes)}.")
    return Answer([asdict(each) for each in chosen])


def _prune(store: RunStore, options: argparse.Namespace) -> Answer:
    before = (datetime.now(UTC) - timedelta(days=options.days)).isoformat()
    found = [each for each in store.list() if each.status in PRUNED and (each.updated or each.started) <= before]
    if not found:
        print(f"No run in {store.root} failed, was interrupted or is damaged.")
        return Answer([])
    if options.yes:
        return _delete(found, store)
    print(list_table(found, width()))
    print(f"{megabytes(sum(each.bytes for each in found))}. To delete them: edgelearn runs prune --yes")
    return Answer([asdict(each) for each in found])


def _rerun(store: RunStore, name: str) -> Answer:
    record = store.open(name).record
    if record["kind"] not in EXPERIMENTS:
        raise RunError(
            f"{record['id']} is a run of '{record['kind']}', which no command trains from its record. Those of "
            f"{', '.join(EXPERIMENTS)} can be trained again."
        )
    experiment = import_object(EXPERIMENTS[record["kind"]])
    results = experiment.start(experiment.config_type.from_dict(record["config"]), store, [ProgressBar()])
    again = store.open(store.list()[0].id)
    return Answer([asdict(_summary(store, again.id))], 130 if results is None else 0)
