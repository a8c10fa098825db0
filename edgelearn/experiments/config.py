"""What a run is made of, as data."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import Self

from edgelearn.errors import RunError


class Config:
    """The base of experiments' configurations: frozen dataclasses, of which a run's record holds every field."""

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict) -> Self:
        """Raises RunError for a record with fields that are unknown here."""
        names = {field.name for field in fields(cls)}
        if unknown := set(record) - names:
            raise RunError(
                f"This run's configuration has '{min(unknown)}', which this edgelearn doesn't know: it was begun by a "
                f"newer one. Update edgelearn, or start a new run."
            )
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in record.items()})

    def check(self, counts: tuple[str, ...]) -> None:
        """Raises RunError where one of `counts` is below 1 or the seed isn't one."""
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RunError(f"{name} is {value}, but has to be at least 1.")
        if not 0 <= self.seed < 1 << 64:
            raise RunError(f"seed is {self.seed}, but has to be from 0 to 2**64 - 1.")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Of a training of `task`, a name that the experiment knows. What is None is the task's; `data` is the folder with
    data sets. Raises RunError for values that can't be."""

    task: str = "sample"
    _: KW_ONLY
    epochs: int | None = None
    micro_batch: int | None = None
    data: str | None = None
    download: bool = True
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        self.check(("epochs", "micro_batch"))
