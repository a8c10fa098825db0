"""Configuration of a training; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.compile.memory.policies import POLICIES
from edgelearn.errors import RunError
from edgelearn.experiments.config import TrainingConfig


@dataclass(frozen=True)
class MemoryConfig(TrainingConfig):
    """Settings of one training from scratch; None means the task's own value.

    - `task`: a name in tasks.TASKS.
    - `reversible`: train the reversible version of the network.
    - `activation_memory`: a policy of compile.memory.policies.

    Raises RunError for impossible values.
    """

    reversible: bool = False
    activation_memory: str = "keep_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation_memory not in POLICIES:
            policies = ", ".join(POLICIES)
            raise RunError(f"'{self.activation_memory}' is no policy of activation memory: choose {policies}.")
