"""Prototypical networks: the nearest class mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Learner
from .classifiers import Classifier, Prototypes, unit


@dataclass(frozen=True)
class NearestMean(Learner):
    """Each word is the mean of its clips' embeddings; a clip is classified as the word with the nearest mean.

    Arguments:
    - `distance`: `"cosine"`, to the mean of embeddings of length 1 (default), or `"euclidean"`, squared, as in
      prototypical networks (Snell et al. 2017).
    """

    name = "nearest-mean"
    distance: str = "cosine"

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0) -> Classifier:
        return Prototypes(class_means(embeddings, labels, num_classes, self.distance), self.distance)


def class_means(embeddings: np.ndarray, labels: np.ndarray, num_classes: int, distance: str) -> np.ndarray:
    """Mean embedding of each class, float32 (num_classes, d); for "cosine", of embeddings of length 1."""
    x = unit(embeddings) if distance == "cosine" else embeddings
    return np.stack([x[labels == label].mean(0) for label in range(num_classes)]).astype(np.float32)
