"""The records of a run's rounds, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence

from edgelearn import atomic, records
from edgelearn.errors import FormatError, RunError
from edgelearn.federated import RoundRecord
from edgelearn.lab.runs import Run

ROUNDS = "rounds.jsonl"  # in the run's folder
_KINDS = ("federated", "verification")


def read_rounds(run: Run) -> list[dict]:
    """Return the record of each round of a run, ascending.

    Raises RunError if the run is no federation, FormatError if a line is damaged.
    """
    if run.record["kind"] not in _KINDS:
        raise RunError(f"Run {run.id} is no federation. `edgelearn runs` lists the kinds; choose one of {_KINDS}.")
    rounds: dict[int, dict] = {}
    for line in atomic.read_lines(run.folder / ROUNDS):
        try:
            happened = records.parse(line, RoundRecord).to_dict()
        except records.RecordError as error:
            raise FormatError(f"{run.folder / ROUNDS} is damaged ({error}). Restore it from a backup.") from None
        rounds[happened["round"]] = happened  # a round that was repeated replaces its old line
    return [rounds[number] for number in sorted(rounds)]


def totals(happened: Sequence[dict]) -> dict:
    """Return the `bytes` of all messages, by direction, how many updates were `left_out`, and the most `memory` that a
    client reported, planned and allocated; clients of others need not report any."""
    clients = [client for each in happened for client in each["clients"]]
    return {
        "bytes": {
            way: {k: sum(each[way][k] for each in happened) for k in ("payload", "total")} for way in ("up", "down")
        },
        "left_out": sum(len(each["left_out"]) for each in happened),
        "memory": {k: int(max((client.get(k, 0) for client in clients), default=0)) for k in ("planned", "allocated")},
    }
