"""Keep what a training has in memory when its run folder can't be written any more."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.errors import RunError

from . import checkpoint
from .record import RECORD
from .run import CHECKPOINT, HISTORY, Run

PREFIX = "edgelearn-runs-"


def rescue(
    run: Run, rows: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]
) -> Path | None:
    """Write a copy of a run to a new store in the folder of temporary files, or else in the home folder.

    Arguments:
    - `run`: its record is taken from memory.
    - `rows`: the history.
    - `tensors`, `state`: as in Run.save_checkpoint.

    Returns the folder of the copy, which can be resumed, or None if it can't be written anywhere.
    """
    for parent in (tempfile.gettempdir, Path.home):
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent())) / run.id
            folder.mkdir()
            atomic.write_json(folder / RECORD, run.record | {"status": "failed"})
            for row in rows:
                atomic.append_line(folder / HISTORY, atomic.to_json(row))
            atomic.write_bytes(folder / CHECKPOINT, checkpoint.encode(tensors, state))
            return folder
        except (OSError, RuntimeError, RunError):  # RuntimeError: there is no home folder
            continue
    return None
