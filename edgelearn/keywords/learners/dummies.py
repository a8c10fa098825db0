"""Dummy prototypes for words that were never enrolled."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import DataError

from .base import Learner
from .classifiers import Classifier, WithDummyPrototypes
from .prototypes import class_means


@dataclass(frozen=True)
class DummyPrototypes(Learner):
    """D-ProtoNets (Kim et al. 2022): a prototype for each word, and dummy prototypes generated from the enrolled clips
    by layers that were trained with the embedder (see `ops.Prototypical`).

    Arguments:
    - `dummy_temperature`: divides the scores of dummies (default: the value used in training).

    Raises DataError for an embedder that was trained without dummy prototypes.
    """

    name = "dummy-prototypes"
    dummy_temperature: float | None = None

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0) -> Classifier:
        generator = embedder.dummies
        if generator is None:
            raise DataError(
                "This embedder has no dummy prototypes: it was trained without them. Train one with the method "
                "'dummy-prototypes', or learn by 'nearest-mean'."
            )
        temperature = self.dummy_temperature or generator.dummy_temperature
        prototypes = class_means(embeddings, labels, num_classes, "euclidean")
        dummies = class_means(generator(embeddings), labels, num_classes, "euclidean").max(0)
        return WithDummyPrototypes(prototypes, dummies, generator.distance, generator.scale, temperature)
