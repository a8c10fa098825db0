"""Dummy prototypes for words that were never enrolled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

from .base import Learner
from .classifiers import Classifier, WithDummyPrototypes


@dataclass(frozen=True)
class DummyPrototypes(Learner):
    """D-ProtoNets (Kim et al. 2022): beside a prototype for each word, dummies made of the enrolled clips by what was
    trained with the embedder (see ops.Prototypical). `relief` is that of training where None. Raises DataError for an
    embedder that has nothing to make them."""

    name = "dummies"
    relief: float | None = None

    def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0) -> Classifier:
        generator = embedder.dummies
        if generator is None:
            raise DataError(
                "This embedder can't make dummy prototypes: it was trained without them. Train one with the method "
                "'dummies', or learn by 'nearest-mean'."
            )
        prototypes = _means(embeddings, labels, ways)
        dummies = _means(generator(embeddings), labels, ways).max(0)
        return WithDummyPrototypes(
            prototypes, dummies, generator.distance, generator.scale, self.relief or generator.relief
        )


def _means(values: np.ndarray, labels: np.ndarray, ways: int) -> np.ndarray:
    return np.stack([values[labels == way].mean(0) for way in range(ways)]).astype(np.float32)
