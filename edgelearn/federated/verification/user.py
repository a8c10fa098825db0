"""Vector and threshold that verify one user, in a file that stays with the user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.errors import DataError, FormatError
from edgelearn.interop import safetensors

from .scores import scores, warm_up_threshold
from .spreading import unit

LEAST_RECORDINGS = 2


@dataclass(frozen=True, eq=False)
class User:
    """A user's vector and threshold. Both are secrets of the user: whoever has the vector can look for inputs that are
    accepted.

    Arguments:
    - `vector`: codeword or embedding that outputs are compared with, float32 (size,).
    - `threshold`: least cosine at which a recording is accepted.
    """

    vector: np.ndarray
    threshold: float

    @staticmethod
    def enrol(outputs: np.ndarray, vector: np.ndarray | None = None, true_positive_rate: float = 0.9) -> User:
        """Return the user whose recordings gave these outputs.

        Arguments:
        - `outputs`: of the network for the user's own recordings, which it wasn't trained with (n, size).
        - `vector`: that of a user who took part in training (default None: the mean direction of the outputs).
        - `true_positive_rate`: share of the user's own recordings to accept (default 0.9).

        Raises DataError for fewer than 2 recordings. Without a vector, each recording is scored against the mean of the
        others, as a new recording will be.
        """
        if len(outputs) < LEAST_RECORDINGS:
            raise DataError(f"Enrolment needs at least {LEAST_RECORDINGS} recordings, got {len(outputs)}.")
        if vector is None:
            directions = unit(np.asarray(outputs, np.float64))
            vector = unit(directions.sum(0))
            own = np.sum(unit(directions.sum(0) - directions) * directions, axis=1)
        else:
            own = scores(outputs, vector)[:, 0]
        return User(np.asarray(vector, np.float32), warm_up_threshold(own, true_positive_rate))

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """Return the score of each recording, (n,), of a network's outputs (n, size).

        Raises FormatError for outputs of another size.
        """
        if outputs.shape[1:] != self.vector.shape:
            raise FormatError(
                f"The network gives {outputs.shape[1]} values, but this user was enrolled with {len(self.vector)}. Use "
                "the network of the enrolment, or enrol again."
            )
        return scores(outputs, self.vector)[:, 0]

    def accepts(self, outputs: np.ndarray) -> np.ndarray:
        """Return True for each recording that is accepted, (n,). Arguments and errors as `scores`."""
        return self.scores(outputs) >= self.threshold

    def save(self, path: str | Path) -> None:
        """Write the file, which only its owner may read where the system has such permissions.

        Raises RunError if it can't be written.
        """
        arrays = {"vector": np.float32(self.vector), "threshold": np.array([self.threshold])}
        with atomic.replacing(path, 8 * len(self.vector)) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o600)
            file.write(safetensors.to_bytes(arrays, {"edgelearn": "user"}))

    @staticmethod
    def load(path: str | Path) -> User:
        """Read a file that `save` wrote. Raises FormatError for another or a damaged one."""
        arrays = safetensors.read_weights(path)
        vector, threshold = arrays.get("vector", np.empty(0)), arrays.get("threshold", np.empty(0))
        fits = vector.ndim == 1 and vector.size and vector.dtype == np.float32 and threshold.shape == (1,)
        if not fits or not np.isfinite(vector).all() or not -1 <= threshold[0] <= 1:
            raise FormatError(f"{path} holds no user: give a file that `edgelearn federated verify enrol` wrote.")
        return User(vector, float(threshold[0]))
