"""The environment of the processes that are attacked."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(**changes: str | Path) -> dict[str, str]:
    """This process's environment, with this edgelearn on the path, and without data that are not part of it."""
    own = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "110"}
    without = {name: value for name, value in os.environ.items() if name != "EDGELEARN_DATA"}
    return without | own | {name: str(value) for name, value in changes.items()}
