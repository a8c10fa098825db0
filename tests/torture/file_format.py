"""A format of files that are read, for `damaged_files`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .mutations import Damage

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class FileFormat:
    """A format of files that are read.

    Arguments:
    - `name`: of the format.
    - `make`: `make(folder)` writes a good file and returns its path.
    - `read`: `read(path)` reads it; of a damaged file it returns something or raises an EdgelearnError.
    - `damage`: changes that fit the format's structure, tried in half of the attacks (default: bytes alone).
    - `needs`: packages without which the format is left out.
    """

    name: str
    make: Callable[[Path], Path]
    read: Read
    damage: Damage | None = None
    needs: Sequence[str] = ()
