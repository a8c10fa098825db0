"""A measure of likeness between embeddings in which what varies within a word counts less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .classifiers import unit

SHRINKAGE = 0.1


@dataclass(frozen=True, eq=False)
class Metric:
    """Embeddings (n, d) to points (n, d) of length 1, whose products are their likeness: (x - mean) @ matrix."""

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        return unit((embeddings - self.mean) @ self.matrix).astype(np.float32)


def within_words(embeddings: np.ndarray, labels: np.ndarray, shrinkage: float = SHRINKAGE) -> Metric:
    """Directions in which clips of a word differ most, by speaker or by chance, count least: the covariance of
    embeddings (n, d) around their words' means is made the identity (WCCN: Hatch, Kajarekar and Stolcke 2006,
    "Within-class covariance normalization for SVM-based speaker recognition"), each value having been scaled to a
    deviation of 1. A share `shrinkage` of the identity keeps what hardly varies from counting for everything."""
    mean = embeddings.mean(0, dtype=np.float64)
    scale = 1 / np.maximum(embeddings.std(0, dtype=np.float64), 1e-6)
    x = (embeddings - mean) * scale
    words, which = np.unique(labels, return_inverse=True)
    apart = x - np.stack([x[which == k].mean(0) for k in range(len(words))])[which]
    covariance = (1 - shrinkage) * apart.T @ apart / len(x) + shrinkage * np.eye(x.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    return Metric(mean, scale[:, None] * directions / np.sqrt(variances))
