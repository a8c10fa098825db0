"""Losses of single values: squared, absolute and Huber's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Tensor

SQUARED, ABSOLUTE, HUBER = range(3)  # as in kernels/regression.cl


@dataclass(frozen=True)
class RegressionLoss(Loss):
    """Base of the mean errors: targets are float, in the shape of the outputs."""

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True
    error: ClassVar[int] = SQUARED

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(error, its slope) of differences."""
        raise NotImplementedError

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        errors, slopes = self.errors(outputs - targets)
        return errors.mean(-1), slopes / slopes.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        delta = getattr(self, "delta", 0.0)
        return self.emit_rows("regression.cl", "regression", e, outputs, control, gradient, delta, error=self.error)


@dataclass(frozen=True)
class MeanSquaredError(RegressionLoss):
    """Mean of (output - target)²."""

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return d * d, 2 * d


@dataclass(frozen=True)
class MeanAbsoluteError(RegressionLoss):
    """Mean of |output - target|. Its slope at 0 is 0."""

    error: ClassVar[int] = ABSOLUTE

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.abs(d), np.sign(d)


@dataclass(frozen=True)
class Huber(RegressionLoss):
    """Mean of d² / 2 for differences |d| up to `delta`, and of delta (|d| - delta / 2) for larger ones (Huber 1964).

    Arguments:
    - `delta`: where the square becomes a line, above 0 (default 1).

    Raises PlanError for another delta.
    """

    error: ClassVar[int] = HUBER

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise PlanError(f"Huber's delta is above 0 (usual is 1), not {self.delta}.")

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.abs(d)
        line = self.delta * (size - self.delta / 2)
        return np.where(size <= self.delta, d * d / 2, line), np.clip(d, -self.delta, self.delta)
