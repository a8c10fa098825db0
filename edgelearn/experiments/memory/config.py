"""Which network trains with which ways back for activations; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.compile.memory.policies import POLICIES
from edgelearn.errors import RunError
from edgelearn.experiments.config import TrainingConfig


@dataclass(frozen=True)
class MemoryConfig(TrainingConfig):
    """A training of `task` (see tasks.TASKS) from scratch: of the plain network, or of its `reversible` twin, with the
    policy `saving`, one of graph.policies.POLICIES. What is None is the task's. Raises RunError for values that can't
    be."""

    reversible: bool = False
    activation_memory: str = "keep_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation_memory not in POLICIES:
            raise RunError(f"'{self.activation_memory}' is no policy for activations: choose {', '.join(POLICIES)}.")
