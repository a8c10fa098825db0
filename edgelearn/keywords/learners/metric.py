"""Similarity of embeddings in which variation within a word counts less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .classifiers import unit

SHRINKAGE = 0.1


@dataclass(frozen=True, eq=False)
class Metric:
    """Map embeddings (n, d) to unit vectors (n, d) whose products are similarities: normalised (x - mean) @ matrix."""

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        return unit((embeddings - self.mean) @ self.matrix).astype(np.float32)


def within_words(embeddings: np.ndarray, labels: np.ndarray, shrinkage: float = SHRINKAGE) -> Metric:
    """Within-class covariance normalisation (WCCN: Hatch, Kajarekar and Stolcke 2006, "Within-class covariance
    normalization for SVM-based speaker recognition").

    Directions in which clips of one word differ most, by speaker or by chance, count least: the covariance around the
    words' means becomes the identity.

    Arguments:
    - `embeddings`: (n, d); each value is first scaled to a standard deviation of 1.
    - `labels`: word of each clip (n,).
    - `shrinkage`: share of the identity that is mixed into the covariance, so that directions with hardly any variance
      don't dominate (default 0.1).
    """
    mean = embeddings.mean(0, dtype=np.float64)
    scale = 1 / np.maximum(embeddings.std(0, dtype=np.float64), 1e-6)
    x = (embeddings - mean) * scale
    words, word = np.unique(labels, return_inverse=True)
    deviation = x - np.stack([x[word == k].mean(0) for k in range(len(words))])[word]
    covariance = (1 - shrinkage) * deviation.T @ deviation / len(x) + shrinkage * np.eye(x.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    return Metric(mean, scale[:, None] * directions / np.sqrt(variances))
