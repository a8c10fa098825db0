"""Which network trains with which ways back for activations; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.graph import Precision
from edgelearn.graph.policies import POLICIES


@dataclass(frozen=True)
class MemoryConfig(Config):
    """A training of `task` (see tasks.TASKS) from scratch: of the plain network, or of its `reversible` twin, with the
    policy `saving`, one of graph.policies.POLICIES. What is None is the task's. Raises RunError for values that can't
    be."""

    task: str = "sample"
    reversible: bool = False
    saving: str = "keep_all"
    epochs: int | None = None
    micro_batch: int | None = None
    data: str | None = None
    download: bool = True
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        self.check(("epochs", "micro_batch"))
        if self.saving not in POLICIES:
            raise RunError(f"'{self.saving}' is no policy for activations: choose {', '.join(POLICIES)}.")

    @property
    def precision(self) -> Precision:
        return Precision()
