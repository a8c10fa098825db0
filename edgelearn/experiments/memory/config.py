"""Configuration of a training: the network and its policy for activation memory."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.compile.memory.policies import POLICIES
from edgelearn.experiments.config import TrainingConfig, setting


@dataclass(frozen=True)
class MemoryConfig(TrainingConfig):
    """Configuration of one training from scratch; None stands for the task's value.

    - `task`: a name in tasks.TASKS.
    - `reversible`: train the reversible version of the network.
    - `activation_memory`: a policy of compile.memory.policies.

    Raises ConfigError for an invalid value.
    """

    reversible: bool = setting(False, "replace residual blocks by couplings of two streams")
    activation_memory: str = setting("keep_all", "policy for the activation memory", choices=tuple(POLICIES),
                                    extensible=True)  # fmt: skip
