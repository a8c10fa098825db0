"""Federated personalisation: what a new user's own clips add to a network that other people's devices trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from edgelearn.data.audio.features import DS_CNN_MLPERF
from edgelearn.errors import DataError
from edgelearn.experiments.trained import load_model
from edgelearn.graph import Network
from edgelearn.keywords.learners import Embedder, FineTune, Head, Learner
from edgelearn.lab.runs import Run

from .config import FederatedConfig
from .experiment import FederatedExperiment

STAGES = ("before", "rounds", "enrolment")
LEARNER = FineTune(epochs=50, learning_rate=0.05, rehearsal=0)  # a device has no clips of other people


@dataclass(frozen=True)
class PersonalErrors:
    """Errors of users who took no part in a federation, each a share of the user's clips.

    Arguments:
    - `users`: their names.
    - `tested`: number of clips of each.
    - `errors`: by stage, of each user: `before` training, after the `rounds`, after the user's own `enrolment`.
    """

    users: Sequence[str]
    tested: np.ndarray
    errors: dict[str, np.ndarray]

    def mean(self, stage: str) -> float:
        """The mean over users."""
        return float(self.errors[stage].mean())

    def worst_tenth(self, stage: str) -> float:
        """The mean over the tenth of the users with most errors, at least one user."""
        return float(np.sort(self.errors[stage])[-ceil(len(self.users) / 10) :].mean())


def personalise(
    run: Run, folds: int = 5, least: int = 10, learner: Learner = LEARNER, device: str | None = None
) -> PersonalErrors:
    """Enrol each speaker of a run's test data on top of the network that the run trained. A user's clips are divided
    into parts; each is tested after enrolment of the others.

    Arguments:
    - `run`: a finished federation of a task with speakers.
    - `folds`: number of parts (default 5).
    - `least`: clips of the words that a user has at least (default 10).
    - `learner`: enrols a user's clips (default: a new last layer, trained from the network's own).
    - `device`: part of a device's name (default: chosen).

    Raises RunError for a run that isn't finished, DataError for a task without speakers or too few clips.
    """
    config = FederatedConfig.from_dict(run.config)
    experiment = FederatedExperiment.load(config)
    (x, labels), speakers = experiment.task.test, experiment.task.test_groups
    if speakers is None:
        raise DataError(f"The task '{config.task}' has no speakers: choose a run of keywords.")
    names, counts = np.unique(speakers, return_counts=True)
    users = names[counts >= max(least, folds)]
    if not len(users):
        raise DataError(f"No speaker of the test data has {max(least, folds)} clips: ask for fewer.")
    features, trained = np.asarray(x)[..., 0], load_model(run, device)
    embedder = _embedder(trained.network, dict(trained.weights), device)
    embeddings, classes = embedder.embed(features), len(experiment.task.data["classes"])

    def enrolled(own: np.ndarray) -> np.ndarray:
        """Return True for each of the user's clips that a classifier enrolled without it misclassifies."""
        wrong = np.zeros(len(own), bool)
        for fold in range(folds):
            tested, support = own[fold::folds], np.setdiff1d(own, own[fold::folds])
            if learner.keeps_embeddings:
                found = learner.classify(embedder, embeddings[support], labels[support], classes)
                scores = found.scores(embeddings[tested])
            else:
                scores = learner.enrol(embedder, features[support], labels[support]).scores(features[tested])
            wrong[fold::folds] = scores.argmax(1) != labels[tested]
        return wrong

    wrong: dict[str, Callable[[np.ndarray], np.ndarray]] = {"enrolment": enrolled}
    for stage, model in (("before", experiment.model), ("rounds", trained)):
        wrong[stage] = (model.predict(x).argmax(1) != labels).__getitem__
    clips = [np.flatnonzero(speakers == user) for user in users]
    clips = [own[np.argsort(labels[own], kind="stable")] for own in clips]  # so that all parts have the same words
    errors = {stage: np.array([wrong[stage](own).mean() for own in clips]) for stage in STAGES}
    return PersonalErrors(users.tolist(), np.array([len(own) for own in clips]), errors)


def _embedder(network: Network, weights: dict[str, np.ndarray], device: str | None) -> Embedder:
    """The network without its last layer, which becomes the head."""
    *nodes, last = network.nodes.values()
    body = Network(f"{network.name}_embedding", network.inputs)
    for node in nodes:
        body.add(node.name, node.op, *node.inputs)
    head = Head(weights[f"{last.name}/kernel"], weights[f"{last.name}/bias"])
    return Embedder(body, {name: weights[name] for name in body.parameters}, DS_CNN_MLPERF, head=head, device=device)
