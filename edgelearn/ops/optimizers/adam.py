"""Adam and AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.settings import is_number, number

from .base import Optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); with `weight_decay` it is AdamW (Loshchilov and Hutter 2019).

    Arguments: those of Optimizer, and
    - `learning_rate`: a number or a Schedule (default 0.001).
    - `beta_1`, `beta_2`: decay of the averages of gradients and of their squares (default 0.9 and 0.999).
    - `epsilon`: added to the root of the squares' average (default 1e-7).
    """

    measures = True

    learning_rate: object = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first moment", "second moment")

    def __post_init__(self) -> None:
        super().__post_init__()
        number("beta_1", self.beta_1, 0, 1)
        number("beta_2", self.beta_2, 0, 1)
        check_epsilon(self.epsilon)

    def correction(self, step: int) -> float:
        return sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)

    def reference_update(self, w, g, slots, rate, step):
        m = self.beta_1 * slots[0] + (1 - self.beta_1) * g
        v = self.beta_2 * slots[1] + (1 - self.beta_2) * g * g
        return w - rate * self.correction(step) * m / (np.sqrt(v) + self.epsilon), [m, v]

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        settings = (float(1 - self.beta_1), float(1 - self.beta_2), float(self.epsilon))
        self._launch(e, "adam", w, g, slots, control, decay, *settings)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Arguments: those of Adam, and
    - `weight_decay`: kernels shrink by learning_rate * weight_decay a step (default 0.004).
    """

    weight_decay: float = 0.004


def check_epsilon(epsilon: float) -> None:
    """Raises PlanError unless it is above 0 and finite."""
    if not is_number(epsilon) or epsilon <= 0:
        raise PlanError(f"epsilon is above 0 and finite (usual is 1e-7), not {epsilon!r:.60}.")
