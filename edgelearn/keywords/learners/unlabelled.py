"""Semi-supervised learners: they use unlabelled clips of the user, too."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """Learn from labelled clips, label the unlabelled ones with high confidence, and learn from all of these (Lee 2013,
    "Pseudo-label").

    Arguments:
    - `base`: the learner used twice (default: nearest mean).
    - `bound`: least probability at which a clip gets a label (default 0.9).
    - `temperature`: multiplies the base's scores before the softmax that gives the probability (default 10).

    Raises DataError for a bound outside [0, 1].
    """

    name = "pseudo-labels"
    base: Learner = field(default_factory=NearestMean)
    bound: float = 0.9
    temperature: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= 1:
            raise DataError(f"bound must be a probability, from 0 to 1, not {self.bound}.")

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        first = self.base.enrol(embedder, features, labels, None, seed)
        if unlabelled is None or not len(unlabelled):
            return first
        log_p = log_softmax(self.temperature * first.scores(unlabelled))
        confident = np.exp(log_p.max(1)) >= self.bound
        features = np.concatenate([features, unlabelled[confident]])
        return self.base.enrol(embedder, features, np.concatenate([labels, log_p.argmax(1)[confident]]), None, seed)


@dataclass(frozen=True)
class EntropyMinimisation(Learner):
    """Fine-tune, and minimise the entropy of predictions for unlabelled clips (Grandvalet and Bengio 2004; with
    BatchNorm's scale and bias, TENT by Wang et al. 2021).

    Arguments:
    - `base`: the fine-tuning (default: of BatchNorm's scale and bias).
    - `weight`: of the entropy in the loss (default 0.3).
    """

    name = "entropy"
    base: FineTune = field(default_factory=lambda: FineTune("batchnorm"))
    weight: float = 0.3

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        num_classes = check_labels(embedder, features, labels)
        labels = np.asarray(labels)
        head = self.base.start(embedder, embedder.embed(features), labels, num_classes)
        if unlabelled is not None:
            features = np.concatenate([features, unlabelled])
            labels = np.concatenate([labels, np.full(len(unlabelled), -1)])
        return self.base.train(embedder, head, features, labels, seed, MinimumEntropy(self.weight))


@dataclass(frozen=True)
class BatchNormStatistics(Learner):
    """Adapt BatchNorm's moving statistics to all of the user's clips, then learn from the labelled ones (Schneider et
    al. 2020, "Improving robustness against common corruptions by covariate shift adaptation").

    Arguments:
    - `base`: the learner (default: nearest mean).
    - `steps`: updates of the statistics, with the layers' momentum (default 2).
    """

    name = "batchnorm-statistics"
    base: Learner = field(default_factory=NearestMean)
    steps: int = 2

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        clips = features if unlabelled is None else np.concatenate([features, unlabelled])
        return self.base.enrol(self.adapt(embedder, clips, seed), features, labels, None, seed)

    def adapt(self, embedder: Embedder, features: np.ndarray, seed: int) -> Embedder:
        """A copy of the embedder with adapted statistics: training with learning rate 0 changes nothing else."""
        model = Model(embedder.network, embedder.weights, seed=seed, share_with=embedder.model)
        model.compile(SGD(0.0), batchnorm="batch")
        labels = np.zeros(len(features), int)
        model.fit(embedder.examples(features), labels, len(features), self.steps, verbose=0)
        return embedder.with_weights(model.weights, embedder.head)


def supervised(learner: Learner) -> Learner:
    """The baseline of a semi-supervised learner: the same learner without unlabelled clips. Others are returned."""
    return getattr(learner, "base", learner)
