"""Classifiers of embeddings: a few arrays each, small enough to store in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True, eq=False)
class Classifier:
    """Base class: a frozen dataclass of arrays and settings."""

    @property
    def num_classes(self) -> int:
        """Number of words."""
        raise NotImplementedError

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        """Log-probabilities or negative distances, float32 (n, num_classes), of embeddings (n, d). The word with the
        highest score is the prediction."""
        raise NotImplementedError

    def known_score(self, embeddings: np.ndarray) -> np.ndarray:
        """Score that each clip is one of the words, whichever: float32 (n,), higher is more certain."""
        return self.scores(embeddings).max(1)


@dataclass(frozen=True, eq=False)
class Prototypes(Classifier):
    """Nearest prototype (Snell et al. 2017).

    Arguments:
    - `prototypes`: float (num_classes, d).
    - `distance`: `"euclidean"` scores by negative squared distance (default), `"cosine"` by the cosine.

    Raises DataError for another distance.
    """

    prototypes: np.ndarray
    distance: str = "euclidean"

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            raise DataError(f"distance is {' or '.join(DISTANCES)}, not {self.distance!r}.")

    @property
    def num_classes(self) -> int:
        return len(self.prototypes)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        return similarity(np.asarray(embeddings), self.prototypes, self.distance)


@dataclass(frozen=True, eq=False)
class WithDummyPrototypes(Classifier):
    """Nearest prototype, with dummy prototypes that stand for all other words (Kim et al. 2022).

    Scores are log-probabilities of the softmax over both kinds. The known score is the log-ratio of the best word to
    all dummies: with distant dummies it ranks clips like `Prototypes`.

    Arguments:
    - `prototypes`: float (num_classes, d).
    - `dummies`: dummy prototypes, float (m, d).
    - `distance`, `scale`, `dummy_temperature`: as in training, see `ops.Prototypical`.
    """

    prototypes: np.ndarray
    dummies: np.ndarray
    distance: str = "cosine"
    scale: float = 1.0
    dummy_temperature: float = 3.0

    @property
    def num_classes(self) -> int:
        return len(self.prototypes)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        known, dummies = self._logits(embeddings)
        return log_softmax(np.concatenate([known, dummies], 1))[:, : self.num_classes]

    def known_score(self, embeddings: np.ndarray) -> np.ndarray:
        known, dummies = self._logits(embeddings)
        return known.max(1) - np.logaddexp.reduce(dummies, 1)

    def _logits(self, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(embeddings)
        known, dummies = (similarity(x, p, self.distance) for p in (self.prototypes, self.dummies))
        return self.scale * known, self.scale / self.dummy_temperature * dummies


@dataclass(frozen=True, eq=False)
class Linear(Classifier):
    """Softmax of x @ kernel + bias. `kernel`: (d, num_classes). `bias`: (num_classes,)."""

    kernel: np.ndarray
    bias: np.ndarray

    @property
    def num_classes(self) -> int:
        return len(self.bias)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        return log_softmax(np.asarray(embeddings) @ self.kernel + self.bias)


@dataclass(frozen=True, eq=False)
class NearClips(Classifier):
    """A linear classifier whose scores are raised for words with similar enrolled clips: see `learners.Neighbours`.

    Arguments:
    - `base`: the linear classifier.
    - `metric`: maps embeddings (n, d) to unit vectors whose products are similarities.
    - `clips`, `labels`: enrolled clips, mapped by `metric` (m, d), and their words (m,).
    - `weight`, `sharpness`, `nearest`: settings of the learner.
    """

    base: Linear
    metric: Callable[[np.ndarray], np.ndarray]
    clips: np.ndarray
    labels: np.ndarray
    weight: float
    sharpness: float
    nearest: int

    @property
    def num_classes(self) -> int:
        return self.base.num_classes

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        scores = self.base.scores(embeddings)
        similar = np.exp(self.sharpness * (self.metric(np.asarray(embeddings)) @ self.clips.T - 1))
        for word in np.unique(self.labels):
            nearest = np.sort(similar[:, self.labels == word], 1)[:, -self.nearest :]
            scores[:, word] += self.weight * nearest.mean(1)
        return log_softmax(scores)


def similarity(x: np.ndarray, prototypes: np.ndarray, distance: str) -> np.ndarray:
    """Cosines or negative squared distances, float32 (n, m), of embeddings (n, d) and prototypes (m, d)."""
    if distance == "cosine":
        return (unit(x) @ unit(prototypes).T).astype(np.float32)
    difference = x[:, None, :] - prototypes
    return -np.einsum("nmd,nmd->nm", difference, difference).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)
