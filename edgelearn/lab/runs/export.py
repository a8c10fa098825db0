"""A run as one JSON document that needs nothing else: record and history, without its folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from edgelearn import atomic

from .run import Run

FORMAT = "edgelearn run 1"


def export(run: Run) -> dict[str, Any]:
    """Record and history as plain JSON values.

    Standard JSON has no NaN and no infinity, so they become null. Raises FormatError if the run is damaged.
    """
    status = run.status  # also rereads the record
    document = {
        "format": FORMAT,
        "run": run.record | {"id": run.id, "status": status},
        "history": run.history(),
    }
    return _finite(json.loads(atomic.to_json(document)))


def write_export(run: Run, path: str | Path) -> None:
    """Write `export(run)` to `path` in one step; raises RunError if that can't be done."""
    atomic.write_json(path, export(run))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
