"""Learning from clips of the user that nobody has labelled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from edgelearn.errors import DataError
from edgelearn.ops import SGD, MinimumEntropy
from edgelearn.train import Model

from .base import Learner, Spotter, check_labels
from .classifiers import log_softmax
from .embedder import Embedder
from .finetune import FineTune
from .prototypes import NearestMean


@dataclass(frozen=True)
class PseudoLabels(Learner):
    """Learn by `base` from the labelled clips, label those of the others that it is sure of, and learn from all of them
    (Lee 2013, "Pseudo-label"). It is sure where the softmax of `temperature` times its scores is at least `bound`.
    Raises DataError for a bound outside 0..1."""

    name = "pseudo-labels"
    base: Learner = field(default_factory=NearestMean)
    bound: float = 0.9
    temperature: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= 1:
            raise DataError(f"bound is a probability, from 0 to 1, not {self.bound}.")

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        first = self.base.enrol(embedder, features, labels, None, seed)
        if unlabelled is None or not len(unlabelled):
            return first
        p = log_softmax(self.temperature * first.scores(unlabelled))
        sure = np.exp(p.max(1)) >= self.bound
        more = np.concatenate([features, unlabelled[sure]])
        return self.base.enrol(embedder, more, np.concatenate([labels, p.argmax(1)[sure]]), None, seed)


@dataclass(frozen=True)
class EntropyMinimisation(Learner):
    """Fine-tune as `base` does, so that the network becomes sure of the unlabelled clips besides: their entropy
    counts `weight` times (Grandvalet and Bengio 2004; with BatchNorm's scale and bias, TENT by Wang et al. 2021)."""

    name = "entropy"
    base: FineTune = field(default_factory=lambda: FineTune("batchnorm"))
    weight: float = 0.3

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        ways = check_labels(embedder, features, labels)
        labels = np.asarray(labels)
        head = self.base.start(embedder, embedder.embed(features), labels, ways)
        if unlabelled is not None:
            features = np.concatenate([features, unlabelled])
            labels = np.concatenate([labels, np.full(len(unlabelled), -1)])
        return self.base.train(embedder, head, features, labels, seed, MinimumEntropy(self.weight))


@dataclass(frozen=True)
class BatchNormStatistics(Learner):
    """Move BatchNorm's statistics towards those of all the user's clips, `steps` times by as much as the layers'
    momentum leaves open, then learn by `base` (Schneider et al. 2020, "Improving robustness against common corruptions
    by covariate shift adaptation")."""

    name = "batchnorm-statistics"
    base: Learner = field(default_factory=NearestMean)
    steps: int = 2

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        every = features if unlabelled is None else np.concatenate([features, unlabelled])
        return self.base.enrol(self.moved(embedder, every, seed), features, labels, None, seed)

    def moved(self, embedder: Embedder, features: np.ndarray, seed: int) -> Embedder:
        """The embedder with other statistics: training at rate 0 moves nothing else."""
        model = Model(embedder.network, embedder.weights, seed=seed, share_with=embedder.model)
        model.compile(SGD(0.0), batchnorm="batch")
        model.fit(embedder.examples(features), np.zeros(len(features), int), len(features), self.steps)
        return embedder.with_weights(model.weights, embedder.head)


def without(learner: Learner) -> Learner:
    """What the same labelled clips come to without the others: what such a learner is compared with."""
    return replace(learner.base) if hasattr(learner, "base") else learner
