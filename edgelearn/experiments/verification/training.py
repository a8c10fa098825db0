"""Train a verification network in a federation, and measure it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgelearn.federated.verification import (
    Method,
    Participant,
    VerificationServer,
    VerificationSettings,
    run_rounds,
    scores,
)
from edgelearn.interop.weights import Weights
from edgelearn.ops import SGD
from edgelearn.train import Model

from .report import Report, report
from .tasks import VerificationTask


@dataclass(frozen=True, eq=False)
class TrainedVerifier:
    """Result of a federation.

    Arguments:
    - `model`: the network with its weights.
    - `vectors`: of all users (users, size); with FedUV each is known to its user alone, and here to the simulation.
    - `report`: how well users are verified.
    - `up_bytes`, `down_bytes`: payload of all messages.
    """

    model: Model
    vectors: np.ndarray
    report: Report
    up_bytes: int
    down_bytes: int


def train_verifier(
    task: VerificationTask, method: Method, settings: VerificationSettings, device: str | None = None,
    progress: Callable[[int], None] = lambda number: None,
) -> TrainedVerifier:  # fmt: skip
    """Train the task's network with a method.

    Arguments:
    - `task`, `method`, `settings`: what to train, and how.
    - `device`: part of a device's name (default: chosen).
    - `progress`: called after each round with its number.
    """
    model = Model(task.network(method.size), None, device, settings.seed).compile(SGD(1.0), method.loss)
    weights: Weights = dict(model.weights)
    totals = {"up": 0, "down": 0}

    def count(number: int, sent: dict[int, bytes], replies: dict[int, bytes]) -> None:
        totals["down"] += sum(map(len, sent.values()))
        totals["up"] += sum(map(len, replies.values()))
        progress(number)

    with model.trainer(batch_size=settings.recordings) as trainer:
        participants = [
            Participant(user, x, method, settings, trainer, len(task.train)) for user, x in enumerate(task.train)
        ]
        server = VerificationServer(weights, participants[0].names, method, settings)
        run_rounds(server, participants, count)
    model.weights = server.weights
    vectors = np.stack([each.vector for each in participants])
    return TrainedVerifier(model, vectors, measure(task, model, vectors), totals["up"], totals["down"])


def measure(task: VerificationTask, model: Model, vectors: np.ndarray) -> Report:
    """Return how well each user's test data are told from other users', and from unseen people's."""
    owners = np.repeat(np.arange(len(task.test)), [len(x) for x in task.test])
    seen = scores(model.predict(np.concatenate(task.test)), vectors)
    unseen = scores(model.predict(task.unseen), vectors) if len(task.unseen) else np.empty((0, len(vectors)))
    return report(seen, owners, unseen)
