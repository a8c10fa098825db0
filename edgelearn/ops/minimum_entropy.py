"""Cross-entropy of labelled examples, entropy of unlabelled ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import Tensor


@dataclass(frozen=True)
class MinimumEntropy(Loss):
    """Cross-entropy of labelled examples; for unlabelled ones, with label -1, `weight` times the entropy of the
    predicted probabilities (Grandvalet and Bengio 2004).

    With unlabelled examples only, batch statistics and only BatchNorm's gamma and beta trained, this is TENT (Wang et
    al. 2021). The accuracy counts unlabelled examples as wrong.

    Arguments:
    - `weight`: of unlabelled examples (default 1).

    Raises PlanError for a negative weight.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise PlanError(f"The weight of unlabelled examples is at least 0 (usual is up to 1), not {self.weight}.")

    def labels(self, outputs: int) -> range:
        return range(-1, outputs)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(outputs)
        shifted = outputs - outputs.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(-1)
        unlabelled = targets < 0
        gradient = p.copy()
        gradient[np.arange(n), targets] -= 1
        gradient[unlabelled] = (-self.weight * p * (log_p + entropy[:, None]))[unlabelled]
        return np.where(unlabelled, self.weight * entropy, -log_p[np.arange(n), targets]), gradient / n

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows("minimum_entropy.cl", "minimum_entropy", e, outputs, control, gradient, self.weight)
