"""Softmax, its logarithm, and its cross-entropy with class numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .base import Arrays, Gradients, Op, Targets, only
from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Softmax(Op):
    """Probabilities over the last axis. As a network's last layer it is trained together with the cross-entropy."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        shifted = np.exp(inputs[0] - inputs[0].max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        p = self.reference_forward(inputs, weights)
        return [p * (dy - (p * dy).sum(-1, keepdims=True))], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (x.rows * e.traits.group,), x.read, y.write, x.rows, x.channels,
            whole=True, gradient=False,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target = only(targets)
        e.launch(
            "softmax.cl", "softmax_backward", (y.rows * e.traits.members,), y.read, dy.read, y.rows, y.blocks,
            *target.arguments, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class LogSoftmax(Op):
    """Logarithms of probabilities over the last axis, finite where a probability is too small for a float: the largest
    input is subtracted first. As a network's last layer it is trained together with the cross-entropy, as Softmax
    is."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        shifted = inputs[0] - inputs[0].max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy - Softmax().reference_forward(inputs, weights) * dy.sum(-1, keepdims=True)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (x.rows * e.traits.group,), x.read, y.write, x.rows, x.channels,
            whole=True, gradient=False, logarithm=True,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target, padded = only(targets), y.channels % y.block != 0
        e.launch(
            "softmax.cl", "log_softmax_backward", (y.rows * e.traits.members,), y.read, dy.read, y.rows, y.blocks,
            *((y.channels,) if padded else ()), *target.arguments, padded=padded, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Softmax and cross-entropy on class numbers: -sum target log softmax(outputs), with target = (1 - label_smoothing)
    one-hot + label_smoothing / classes (Szegedy et al. 2016, section 7).

    Targets are int (n,), or (n, height, width) for a network that gives classes for each pixel. A Softmax at the
    network's end belongs to the loss; outputs of a network without one are logits. Keras's
    SparseCategoricalCrossentropy.

    Arguments:
    - `label_smoothing`: share of the label given to all classes, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise PlanError(f"label_smoothing is at least 0 and below 1 (usual is 0.1), not {self.label_smoothing}.")

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, classes = outputs.shape
        target = np.full_like(outputs, self.label_smoothing / classes)
        target[np.arange(n), targets] += 1 - self.label_smoothing
        p, log_p = (op.reference_forward([outputs], {}) for op in (Softmax(), LogSoftmax()))
        return -(target * log_p).sum(-1), (p - target) / n

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows(
            "softmax_cross_entropy.cl", "softmax_cross_entropy", e, outputs, control, gradient, self.label_smoothing
        )
