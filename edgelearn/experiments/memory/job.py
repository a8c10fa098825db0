"""One training from scratch, from data to a run folder."""

from __future__ import annotations

from edgelearn.compile.memory.policies import find_policy
from edgelearn.experiments.task import TaskExperiment
from edgelearn.ops import Optimizer

from .config import MemoryConfig
from .tasks import TASKS


class MemoryExperiment(TaskExperiment[MemoryConfig]):
    """A training from scratch. Those that differ in activation memory alone see the same examples in the same order."""

    kind, command, config_type, tasks = "memory", "edgelearn memory train", MemoryConfig, TASKS

    def compile(self, optimizer: Optimizer) -> None:
        self.model.compile(
            optimizer, batchnorm=self.task.batchnorm, activation_memory=find_policy(self.config.activation_memory)
        )
