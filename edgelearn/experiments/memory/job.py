"""One training from scratch, from data to a run folder."""

from __future__ import annotations

from edgelearn.experiments.quantised_backprop.job import PrecisionJob
from edgelearn.experiments.quantised_backprop.tasks import Task
from edgelearn.graph.policies import POLICIES

from .config import MemoryConfig
from .tasks import TASKS, load_task, resolve


class MemoryJob(PrecisionJob):
    """As the trainings in other precisions, in float32 and with other ways back for activations: same examples, same
    order, same first weights."""

    kind, command, config_type = "memory", "edgelearn memory train", MemoryConfig

    def __init__(self, config: MemoryConfig, task: Task) -> None:
        self.task, self.config, self.trace = task, resolve(config), None
        self.model = task.model
        optimizer = task.optimizer(task.steps(self.config.epochs))
        self.model.compile(optimizer, batchnorm=task.batchnorm, saving=POLICIES[config.saving])

    @classmethod
    def load(cls, config: MemoryConfig) -> MemoryJob:
        config = resolve(config)
        return cls(config, load_task(config))

    def sources(self) -> list[str]:
        described = [self.task.data["description"], f"Weights: {self.task.weights['description']}"]
        return [*described, TASKS[self.config.task].title]
