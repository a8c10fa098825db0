"""The server's step of FedAwS: move the class embeddings of users apart."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import ShapeError


def spread(embeddings: np.ndarray, rate: float, strength: float = 10.0, nearest: int = 10) -> np.ndarray:
    """Return embeddings after a step down strength · Σ -‖w - w'‖² over each w and its nearest w' (Yu et al. 2020,
    "Federated learning with only positive labels", section 4), scaled to length 1.

    Arguments:
    - `embeddings`: of all users, of length 1: float (users, size).
    - `rate`: learning rate of the step.
    - `strength`: the paper's λ (default 10).
    - `nearest`: other users that each is moved away from (default 10; all, if there are fewer). With all, a step only
      takes the mean off, and embeddings may meet two by two: choose fewer where there are few users.

    Raises ShapeError for something else than a matrix of finite values.
    """
    w = np.asarray(embeddings, np.float64)
    if w.ndim != 2 or not np.isfinite(w).all():
        raise ShapeError(f"Class embeddings are a finite matrix (users, size), got shape {w.shape}.")
    users, count = len(w), min(nearest, len(w) - 1)
    if count < 1:
        return unit(w).astype(np.float32)
    squares = np.square(w).sum(1)
    distances = squares[:, None] + squares - 2 * w @ w.T
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :count]
    pairs = np.zeros((users, users))
    np.put_along_axis(pairs, near, 1.0, axis=1)
    pairs += pairs.T  # d(w, w')² depends on both
    gradient = -2 * (pairs.sum(1, keepdims=True) * w - pairs @ w)
    return unit(w - rate * strength * gradient).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale the rows of `vectors` (..., size) to length 1; rows of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
