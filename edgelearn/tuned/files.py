"""Folder of the user's measurements, and atomic writes to it."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from edgelearn import atomic, caches
from edgelearn.errors import FormatError, RunError

VARIABLE = "EDGELEARN_TUNED"
ROOM = 1_000_000  # bytes


def chosen() -> Path:
    """EDGELEARN_TUNED if set, else edgelearn/tuned in the user's data folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_data_path("edgelearn", appauthor=False) / "tuned"


def user_folder() -> Path:
    """EDGELEARN_TUNED if set, else edgelearn/tuned in the user's data folder; a temporary folder where that can't be
    made."""
    folder = chosen()
    if os.environ.get(VARIABLE) or folder.is_dir():  # results that can be read are read, also where none can be written
        return folder
    return caches.place(folder, VARIABLE, ROOM).folder or folder


def write(path: Path, text: str, what: str) -> None:
    """Write a file atomically. Raises FormatError, naming the content as `what`, if it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, text.encode())
    except (OSError, RunError) as error:
        raise FormatError(
            f"The {what} cannot be written to {path} ({error}): name a folder that can be written in the environment "
            f"variable EDGELEARN_TUNED."
        ) from None
