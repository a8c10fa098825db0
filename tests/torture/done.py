"""What earlier runs of the suite came to, in a JSON file, so that the next one goes on behind them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from edgelearn import atomic, records

T = TypeVar("T")


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
