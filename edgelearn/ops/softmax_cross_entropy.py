"""Softmax, and its cross-entropy with integer labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import PlanError, ShapeError

from .base import Arrays, PlainOp
from .control import Answers, Control
from .emit import Emitter, GradientTarget
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Softmax(PlainOp):
    """Probabilities over (classes,). As a network's last layer it is trained together with the cross-entropy."""

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ShapeError(f"Softmax takes (classes,), but the input has shape {shape}: put a Flatten before it.")
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        shifted = np.exp(inputs[0] - inputs[0].max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (x.rows * e.traits.group,), x.read, y.write, x.rows, x.channels,
            whole=True, gradient=False,
        )  # fmt: skip

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        raise PlanError("Softmax is trained only as the last layer, together with the cross-entropy: move it there.")


def reference_loss(logits: np.ndarray, labels: np.ndarray, smoothing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(loss of each example, gradient of their mean to the logits); target = (1 - smoothing) one-hot + smoothing / k
    (Szegedy et al. 2016, section 7)."""
    n, classes = logits.shape
    target = np.full_like(logits, smoothing / classes)
    target[np.arange(n), labels] += 1 - smoothing
    p = Softmax().reference_forward([logits], {})
    log_p = logits - logits.max(-1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    return -(target * log_p).sum(-1), (p - target) / n


def emit_loss(e: Emitter, logits: Tensor, control: Control, smoothing: float, gradient: Tensor | None) -> Answers:
    """Losses and right answers, which `emit_count` counts; and the logits' gradient where one is wanted."""
    losses, right = e.tensor("losses", (1, logits.rows)), e.tensor("right", (1, logits.rows))
    more = [control.scalars.read, gradient.write] if gradient is not None else []
    e.launch(
        "softmax_cross_entropy.cl", "softmax_cross_entropy", (logits.rows * e.traits.group,), logits.read,
        control.labels.read, losses.write, right.write, logits.rows, logits.channels, float(smoothing), *more,
        whole=True, gradient=gradient is not None,
    )  # fmt: skip
    return Answers(losses, right)
