"""Softmax with cross-entropy of one-hot or soft targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .binary_cross_entropy import check_gamma, check_smoothing
from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Tensor


@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Softmax and cross-entropy on probabilities: -sum y log softmax(outputs).

    Targets are float in the shape of the outputs, at least 0: one-hot, or soft as from a teacher or MixUp. A Softmax at
    the network's end belongs to the loss; outputs of a network without one are logits. For class numbers see
    SoftmaxCrossEntropy.

    Arguments:
    - `label_smoothing`: share of the target given to all classes, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    target_dtype: ClassVar[str] = "float32"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / outputs.shape[-1]
        log_p = outputs - outputs.max(-1, keepdims=True)
        log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
        loss, slope = self.parts(y, log_p)
        gradient = slope - np.exp(log_p) * slope.sum(-1, keepdims=True)
        return loss.sum(-1), gradient / len(outputs)

    def parts(self, y: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(share of each class in the loss, that share's slope to log_p)."""
        return -y * log_p, -y

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, 0.0, 1.0
        return self.emit_rows(*KERNEL, e, outputs, control, gradient, *settings, focal=False)


@dataclass(frozen=True)
class CategoricalFocalCrossentropy(CategoricalCrossentropy):
    """CategoricalCrossentropy, each term times alpha (1 - p)^gamma: easy examples count less (Lin et al. 2017, "Focal
    loss for dense object detection").

    Targets and outputs as CategoricalCrossentropy. For other weights of single classes see `class_weight` in Model.fit.

    Arguments:
    - `label_smoothing`: as CategoricalCrossentropy (default 0).
    - `gamma`: exponent, at least 0 (default 2).
    - `alpha`: factor of all terms, at least 0 (default 0.25).

    Raises PlanError for values out of range.
    """

    gamma: float = 2.0
    alpha: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        if not self.alpha >= 0:
            raise PlanError(f"alpha is at least 0 (usual is 0.25), not {self.alpha}.")

    def parts(self, y: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(log_p)
        rest = 1 - p
        factor = rest**self.gamma
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = np.where(rest > 0, self.gamma * rest ** (self.gamma - 1) * p * log_p, 0)
        return -self.alpha * y * factor * log_p, self.alpha * y * (bend - factor)

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, self.gamma, self.alpha
        return self.emit_rows(*KERNEL, e, outputs, control, gradient, *settings, focal=True)


KERNEL = "categorical_cross_entropy.cl", "categorical_cross_entropy"
