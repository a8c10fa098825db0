"""One training from scratch, from data to a run folder."""

from __future__ import annotations

from edgelearn.experiments.task import TaskJob
from edgelearn.graph.policies import POLICIES
from edgelearn.ops import Optimizer

from .config import MemoryConfig
from .tasks import TASKS


class MemoryJob(TaskJob):
    """Trainings that differ in what is kept of activations see the same examples in the same order."""

    kind, command, config_type, tasks = "memory", "edgelearn memory train", MemoryConfig, TASKS
    config: MemoryConfig

    def compile(self, optimizer: Optimizer) -> None:
        self.model.compile(optimizer, batchnorm=self.task.batchnorm, saving=POLICIES[self.config.saving])
