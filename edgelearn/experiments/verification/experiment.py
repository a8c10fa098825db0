"""A federation of users in a run folder: how well a network accepts its user's recordings and no others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.experiments.experiment import Log
from edgelearn.experiments.federated import FederatedExperiment
from edgelearn.federated import LabelsPerClient, Partition, Rounds
from edgelearn.federated.verification import Users, VerificationStrategy, scores
from edgelearn.keywords import save_embedder
from edgelearn.keywords.learners import Embedder
from edgelearn.lab.runs import Run
from edgelearn.ops import Optimizer

from .config import VerificationConfig
from .report import Report, report
from .tasks import FRONT_END, TASKS

VOICES = "voices"  # the network, in the run's folder, for `verify enrol`


class VerificationRounds(Rounds):
    """Rounds whose test verifies users: its labels are their numbers, -1 for people who took no part."""

    strategy: VerificationStrategy

    @property
    def vectors(self) -> np.ndarray:
        """Vectors of all users (users, size), averaged like the model's weights; with FedUV each is known to its user
        alone, and here to the lab."""
        users, seed = range(self.settings.clients), self.settings.seed
        if not self.strategy.own_size:
            return np.stack([self.strategy.vector(user, seed) for user in users])
        return np.stack([own if own.any() else self.strategy.vector(u, seed) for u, own in enumerate(self.tested_own)])

    def report(self, x, y) -> Report:
        """Return how well each user's test data are told from other users', and from unseen people's."""
        found, seen = scores(self.model.predict(x), self.vectors), y >= 0
        return report(found[seen], y[seen], found[~seen])

    def evaluate(self, x, y):
        return self.report(x, y).figures


class VerificationExperiment(FederatedExperiment):
    """A federation of users, each with recordings of their own."""

    kind, command, config_type = "verification", "edgelearn federated verify train", VerificationConfig
    tasks = TASKS
    config: VerificationConfig
    rounds: VerificationRounds
    rounds_type, clients_type = VerificationRounds, Users

    def compile(self, optimizer: Optimizer) -> None:
        self.model.compile(optimizer, self.config.make_strategy().loss, batchnorm=self.task.batchnorm)

    @property
    def partition(self) -> Partition:
        return LabelsPerClient(self.config.clients or 0, self.config.seed)

    def clients_settings(self) -> Mapping[str, Any]:
        return {"strategy": self.config.make_strategy()}

    def results(self, correct, total, loss, seconds):
        seen = int(np.sum(self.task.test[1] >= 0))
        return super().results(round(correct / total * seen), seen, loss, seconds)

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        if self.task.groups is not None:  # voices
            path: Path = run.folder / VOICES
            save_embedder(path, Embedder(self.model.network, dict(self.model.weights), FRONT_END))
            log(f"Network for `edgelearn federated verify enrol --network`: {path}")
        return super().finish(run, seconds, log)
