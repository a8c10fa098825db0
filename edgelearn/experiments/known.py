"""Trainings that a run store has already, found by their configuration: what is finished isn't trained again."""

from __future__ import annotations

from collections.abc import Callable

from edgelearn.errors import NonFiniteError, RunError
from edgelearn.lab.runs import Run, RunStore


def known_runs(store: RunStore, kind: str, key: Callable[[Run], str | None]) -> dict[str, Run]:
    """The newest run of each training of a kind, a finished one if there is one.

    Arguments:
    - `key`: of a run, equal for the same training; None, or a RunError, for a run to leave out.
    """
    newest: dict[str, Run] = {}
    for summary in store.list():
        if summary.kind == kind and summary.status != "damaged":
            run = store.open(summary.id)
            try:
                training = key(run)
            except RunError:  # of a newer version
                continue
            if training and (training not in newest or (summary.status == "finished" != newest[training].status)):
                newest[training] = run
    return newest


def is_done(run: Run | None) -> bool:
    """True for a training that is finished, or that diverged and would again."""
    return run is not None and (run.status == "finished" or diverged(run))


def diverged(run: Run) -> bool:
    """True for a training that ended in a NaN or an infinity."""
    return run.status == "failed" and run.record["error"]["type"] == NonFiniteError.__name__


def can_go_on(run: Run | None) -> bool:
    """True for a training that was interrupted or failed, and can be resumed."""
    return run is not None and run.status in ("interrupted", "failed")
