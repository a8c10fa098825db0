"""Losses of user verification: the cosine between outputs and a target vector, below a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Shape, Tensor

SMALLEST = 1e-12  # as in kernels/cosine.cl


@dataclass(frozen=True)
class CosineHinge(Loss):
    """Base of the losses max(0, margin - cos(outputs, target)), or their square.

    Targets are float in the shape of the outputs. Their length doesn't matter, nor does that of the outputs.
    """

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True
    squared: ClassVar[bool] = False

    margin: float = 1.0

    def __post_init__(self) -> None:
        if not -1 < self.margin <= 1:
            raise PlanError(f"The margin of {type(self).__name__} is a cosine above -1 and up to 1, not {self.margin}.")

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(
                f"{type(self).__name__} takes outputs (size,), but the network gives {shape}: add a Flatten."
            )

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        squares = np.square(outputs).sum(-1, keepdims=True) + SMALLEST
        lengths = np.sqrt(squares * (np.square(targets).sum(-1, keepdims=True) + SMALLEST))
        products = (outputs * targets).sum(-1, keepdims=True)
        missing = np.maximum(0, self.margin - products / lengths)
        slope = 2 * missing if self.squared else np.sign(missing)
        gradient = -slope * (targets - products / squares * outputs) / lengths / len(outputs)
        return (missing**2 if self.squared else missing)[:, 0], gradient

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows(
            "cosine.cl", "cosine_hinge", e, outputs, control, gradient, self.margin, squared=self.squared
        )


@dataclass(frozen=True)
class CodewordHinge(CosineHinge):
    """Loss of FedUV: max(0, margin - v·s(y) / c) for outputs y, scaled by s to the length √c, and a codeword v
    (Hosseini et al. 2021, "Federated learning of user verification models without sharing embeddings").

    The outputs are those of the shared matrix: the network ends in `Dense(c, use_bias=False)`. Targets are the user's
    codeword of -1 and 1, float (n, c). Since its length is √c, too, the loss is margin - cos(y, v).

    Arguments:
    - `margin`: agreement at which an example stops counting, above -1 and up to 1 (default 1, as published).

    Raises PlanError for another margin.
    """


@dataclass(frozen=True)
class PositiveHinge(CosineHinge):
    """Loss of FedAwS on positive examples alone: max(0, margin - cos(g, w))² for an embedding g and the class's
    embedding w (Yu et al. 2020, "Federated learning with only positive labels").

    Targets are w, float (n, size). Nothing in this loss keeps the w of two users apart: a server does, see
    `edgelearn.federated.verification.spread`.

    Arguments:
    - `margin`: cosine at which an example stops counting, above -1 and up to 1 (default 0.9, as published).

    Raises PlanError for another margin.
    """

    squared: ClassVar[bool] = True

    margin: float = 0.9
