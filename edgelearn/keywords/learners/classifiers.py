"""What tells enrolled words apart by their embeddings: a few arrays, that a file can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True, eq=False)
class Classifier:
    """Base: a frozen dataclass of arrays and settings."""

    @property
    def ways(self) -> int:
        """How many words."""
        raise NotImplementedError

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        """Log-probabilities or negative distances: float32 (n, ways) of embeddings (n, d). The word with the highest
        is recognised."""
        raise NotImplementedError

    def knownness(self, embeddings: np.ndarray) -> np.ndarray:
        """How sure it is that each clip is one of the words, whichever: float32 (n,), higher is surer."""
        return self.scores(embeddings).max(1)


@dataclass(frozen=True, eq=False)
class Prototypes(Classifier):
    """The nearest of `prototypes` (ways, d): scores are negative squared Euclidean distances (Snell et al. 2017), or
    cosines. Raises DataError for another distance."""

    prototypes: np.ndarray
    distance: str = "euclidean"

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            raise DataError(f"A distance is {' or '.join(DISTANCES)}, not {self.distance!r}.")

    @property
    def ways(self) -> int:
        return len(self.prototypes)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        return similarity(np.asarray(embeddings), self.prototypes, self.distance)


@dataclass(frozen=True, eq=False)
class WithDummyPrototypes(Classifier):
    """The nearest of `prototypes` (ways, d), beside `dummies` (m, d) that stand for everything else. Scores are
    log-probabilities of the softmax over all of them, known-ness is how much of it the best word has against the
    dummies, so that with dummies far away it is that of Prototypes.
    `scale` and `relief` are those of ops.Prototypical."""

    prototypes: np.ndarray
    dummies: np.ndarray
    distance: str = "cosine"
    scale: float = 1.0
    relief: float = 3.0

    @property
    def ways(self) -> int:
        return len(self.prototypes)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        known, dummies = self._logits(embeddings)
        return log_softmax(np.concatenate([known, dummies], 1))[:, : self.ways]

    def knownness(self, embeddings: np.ndarray) -> np.ndarray:
        known, dummies = self._logits(embeddings)
        return known.max(1) - np.logaddexp.reduce(dummies, 1)

    def _logits(self, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(embeddings)
        known, dummies = (similarity(x, p, self.distance) for p in (self.prototypes, self.dummies))
        return self.scale * known, self.scale / self.relief * dummies


@dataclass(frozen=True, eq=False)
class Linear(Classifier):
    """Softmax over x kernel + bias: kernel (d, ways), bias (ways,)."""

    kernel: np.ndarray
    bias: np.ndarray

    @property
    def ways(self) -> int:
        return len(self.bias)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        return log_softmax(np.asarray(embeddings) @ self.kernel + self.bias)


@dataclass(frozen=True, eq=False)
class NearClips(Classifier):
    """Log-probabilities of `plain`'s scores, raised for words with clips that are near: see learners.Neighbours.
    clips (m, d) are points of `metric`, of the words `labels` (m,)."""

    plain: Linear
    metric: Callable[[np.ndarray], np.ndarray]
    clips: np.ndarray
    labels: np.ndarray
    weight: float
    sharpness: float
    nearest: int

    @property
    def ways(self) -> int:
        return self.plain.ways

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        scores = self.plain.scores(embeddings)
        near = np.exp(self.sharpness * (self.metric(np.asarray(embeddings)) @ self.clips.T - 1))
        for word in np.unique(self.labels):
            nearest = np.sort(near[:, self.labels == word], 1)[:, -self.nearest :]
            scores[:, word] += self.weight * nearest.mean(1)
        return log_softmax(scores)


def similarity(x: np.ndarray, prototypes: np.ndarray, distance: str) -> np.ndarray:
    """Of embeddings (n, d) to prototypes (m, d): float32 (n, m), negative squared distances or cosines."""
    if distance == "cosine":
        return (unit(x) @ unit(prototypes).T).astype(np.float32)
    apart = x[:, None, :] - prototypes
    return -np.einsum("nmd,nmd->nm", apart, apart).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)
