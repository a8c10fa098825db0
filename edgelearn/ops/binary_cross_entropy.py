"""Sigmoid with cross-entropy: two classes, or several labels of which any number may be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Tensor


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Sigmoid and cross-entropy of each output: the mean of -y log p - (1 - y) log(1 - p), with p = sigmoid(output).

    Targets are 0 to 1 in the shape of the outputs. A Sigmoid at the network's end belongs to the loss; outputs of a
    network without one are logits. The accuracy is the share of outputs on the target's side of 1/2.

    Arguments:
    - `label_smoothing`: share of each target replaced by 1/2, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = "Sigmoid"
    accuracy: ClassVar[str] = "values"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = np.maximum(outputs, 0) - outputs * y + np.log1p(np.exp(-np.abs(outputs)))
        return losses.mean(-1), (_sigmoid(outputs) - y) / outputs.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, 0.0, -1.0
        return self.emit_rows(*KERNEL, e, outputs, control, gradient, *settings, focal=False)


@dataclass(frozen=True)
class BinaryFocalCrossentropy(BinaryCrossentropy):
    """BinaryCrossentropy, each term times (1 - p_t)^gamma, where p_t is the probability of what is right: easy examples
    count less (Lin et al. 2017, "Focal loss for dense object detection").

    Targets and outputs as BinaryCrossentropy.

    Arguments:
    - `label_smoothing`: as BinaryCrossentropy (default 0).
    - `gamma`: exponent, at least 0 (default 2).
    - `alpha`: weight of targets 1, from 0 to 1; targets 0 have 1 - alpha (default None: both 1). The paper's is 0.25,
      which is Keras's `apply_class_balancing=True`.

    Raises PlanError for values out of range.
    """

    gamma: float = 2.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise PlanError(f"alpha is from 0 to 1 (usual is 0.25), or None, not {self.alpha}.")

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, (p, not_p) = targets * (1 - self.label_smoothing) + self.label_smoothing / 2, _both(outputs)
        loss = np.maximum(outputs, 0) - outputs * y + np.log1p(np.exp(-np.abs(outputs)))
        wrong = y * not_p + (1 - y) * p
        balance = 1.0 if self.alpha is None else y * self.alpha + (1 - y) * (1 - self.alpha)
        bend = self.gamma * wrong ** (self.gamma - 1) * (1 - 2 * y) * p * not_p
        slope = balance * (bend * loss + wrong**self.gamma * (p - y))
        return (balance * wrong**self.gamma * loss).mean(-1), slope / outputs.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, self.gamma, -1.0 if self.alpha is None else self.alpha
        return self.emit_rows(*KERNEL, e, outputs, control, gradient, *settings, focal=True)


KERNEL = "binary_cross_entropy.cl", "binary_cross_entropy"


def check_smoothing(smoothing: float) -> None:
    """Raises PlanError for a label smoothing out of range."""
    if not 0 <= smoothing < 1:
        raise PlanError(f"label_smoothing is at least 0 and below 1 (usual is 0.1), not {smoothing}.")


def check_gamma(gamma: float) -> None:
    """Raises PlanError for an exponent of a focal loss that is out of range."""
    if not gamma >= 0:
        raise PlanError(f"gamma is at least 0 (usual is 2), not {gamma}.")


def _both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sigmoid(x) and 1 - sigmoid(x), each to its own last digit."""
    e = np.exp(-np.abs(x))
    one, zero = 1 / (1 + e), e / (1 + e)
    return np.where(x >= 0, one, zero), np.where(x >= 0, zero, one)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _both(x)[0]
