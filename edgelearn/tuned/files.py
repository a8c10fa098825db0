"""Where a user's own measurements are kept, and writing one of them whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

from edgelearn.errors import FormatError


def user_folder() -> Path:
    """EDGELEARN_TUNED, else edgelearn/tuned in the system's place for data."""
    if named := os.environ.get("EDGELEARN_TUNED"):
        return Path(named)
    return user_data_path("edgelearn", appauthor=False) / "tuned"


def write(path: Path, text: str, what: str) -> None:
    """Replace the file at `path`, all or nothing. Raises FormatError, naming `what` it was to hold, where
    that can't be written."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise FormatError(
            f"The {what} cannot be written to {path} ({error.strerror}): name a folder that can be written in the "
            f"environment variable EDGELEARN_TUNED."
        ) from None
