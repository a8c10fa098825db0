"""Common parts of all attacks: a runner, outcomes that go on after earlier runs, formats of files, an environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgelearn import atomic, records

from .mutations import Damage

ROOT = Path(__file__).resolve().parents[2]


def environment(**changes: str | Path) -> dict[str, str]:
    """This process's environment, with this edgelearn on the path, and without data that are not part of it."""
    own = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "110"}
    without = {name: value for name, value in os.environ.items() if name != "EDGELEARN_DATA"}
    return without | own | {name: str(value) for name, value in changes.items()}


@dataclass
class Outcome:
    """The result of the attacks on one thing.

    Fields:
    - `name`: of what is attacked.
    - `attacks`: their number.
    - `failures`: a line for each.
    - `ends`: how many attacks ended in which way, such as "refused".
    - `most`: the largest figures, such as "seconds" and "MiB".
    """

    name: str = ""
    attacks: int = 0
    failures: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)

    def note(self, end: str, problem: str = "", **figures: float) -> None:
        """Add an attack: how it ended, its problem if it is a failure, and its figures."""
        self.attacks += 1
        self.ends[end] = self.ends.get(end, 0) + 1
        self.failures += [problem] if problem else []
        self.most |= {name: max(self.most.get(name, 0.0), figure) for name, figure in figures.items()}

    def __str__(self) -> str:
        ends = ", ".join(f"{count:,} {end}" for end, count in sorted(self.ends.items()))
        return "; ".join([ends or "none", *(f"at most {figure:.2f} {name}" for name, figure in self.most.items())])


@dataclass(frozen=True)
class Attack:
    """Something that is attacked again and again.

    Arguments:
    - `name`: of what is attacked.
    - `steps`: `steps(outcome, deadline)` goes on behind the attacks of `outcome`; each step is an attack, noted in it.
      The generator is closed at the `deadline`.
    - `left_out`: why it can't be attacked here, or "".
    """

    name: str
    steps: Callable[[Outcome, float], Generator[None]]
    left_out: str = ""

    def run(self, deadline: float = float("inf"), outcome: Outcome | None = None) -> Outcome:
        """Attack until all is done or `time.monotonic()` reaches `deadline`. `outcome`: of an earlier run, added to."""
        outcome = outcome or Outcome(self.name)
        with closing(self.steps(outcome, deadline)) as steps:
            while time.monotonic() < deadline:
                if next(steps, self) is self:  # it came to its end
                    break
        return outcome


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

    def of(self, name: str) -> Outcome | None:
        """Return what the attack `name` came to so far."""
        known = self._outcomes.get(name)
        return None if known is None else records.convert(known, Outcome)

    def keep(self, outcome: Outcome) -> None:
        """Note an outcome, and write the file."""
        self._outcomes[outcome.name] = asdict(outcome)
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
