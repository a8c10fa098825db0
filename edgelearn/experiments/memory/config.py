"""Configuration of a training: the network and its policy for activation memory."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.compile.memory.policies import POLICIES
from edgelearn.experiments.config import TrainingConfig, setting


@dataclass(frozen=True)
class MemoryConfig(TrainingConfig):
    """A training of `task` (see tasks.TASKS) from scratch: of the plain network or of its `reversible` twin, with one
    of compile.memory.policies.POLICIES. None stands for the task's value. Raises ConfigError for an invalid value."""

    reversible: bool = setting(False, "replace residual blocks by couplings of two streams")
    activation_memory: str = setting("keep_all", "policy for the activation memory", choices=tuple(POLICIES))
