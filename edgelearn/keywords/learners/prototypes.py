"""The nearest class mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Learner
from .classifiers import Classifier, Prototypes, unit


@dataclass(frozen=True)
class NearestMean(Learner):
    """Each word is the mean of its clips' embeddings, and a clip is the word whose mean is nearest: by squared
    "euclidean" distance, which is how prototypical networks recognise (Snell et al. 2017), or by "cosine", of the mean
    of embeddings of length 1."""

    name = "nearest-mean"
    distance: str = "cosine"

    def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0) -> Classifier:
        return Prototypes(class_means(embeddings, labels, ways, self.distance), self.distance)


def class_means(embeddings: np.ndarray, labels: np.ndarray, ways: int, distance: str) -> np.ndarray:
    """(ways, d)."""
    x = unit(embeddings) if distance == "cosine" else embeddings
    return np.stack([x[labels == way].mean(0) for way in range(ways)]).astype(np.float32)
