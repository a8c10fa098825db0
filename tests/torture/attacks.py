"""What all attacks share: formats of files, outcomes that go on after earlier runs, and processes' environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgelearn import atomic, records

from .mutations import Damage

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


def environment(**changes: str | Path) -> dict[str, str]:
    """This process's environment, with this edgelearn on the path, and without data that are not part of it."""
    own = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "110"}
    without = {name: value for name, value in os.environ.items() if name != "EDGELEARN_DATA"}
    return without | own | {name: str(value) for name, value in changes.items()}


@dataclass
class Outcome:
    """What the attacks on one thing came to: their number, and the failures."""

    name: str = ""
    attacks: int = 0
    failures: list[str] = field(default_factory=list)


class Done:
    """Outcomes by the name of the attack.

    Arguments:
    - `path`: the file; None: nothing is known, and nothing is kept.
    - `seed`: of the attacks. Raises ValueError if the file is of another one.
    """

    def __init__(self, path: Path | None, seed: int) -> None:
        self.path, self.seed = path, seed
        self._outcomes: dict[str, Any] = {}
        if path is not None and path.exists():
            known = records.read(path, dict)
            if known["seed"] != seed:
                raise ValueError(f"{path} is of seed {known['seed']}, not {seed}.")
            self._outcomes = known["outcomes"]

    def of(self, name: str, kind: type[T]) -> T | None:
        """Return what the attack `name` came to so far."""
        known = self._outcomes.get(name)
        return None if known is None else records.convert(known, kind)

    def keep(self, name: str, outcome: Any) -> None:
        """Note an outcome, and write the file."""
        self._outcomes[name] = asdict(outcome)
        if self.path is not None:
            atomic.write_json(self.path, {"seed": self.seed, "outcomes": self._outcomes})


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
