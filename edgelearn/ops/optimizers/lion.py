"""Lion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.launch import Buffer
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.settings import number

from .base import Optimizer


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size in the direction of the sign of a momentum (Chen et al. 2023), with one slot a parameter.

    Arguments: those of Optimizer, and
    - `learning_rate`: a number or a Schedule (default 0.001; a tenth of Adam's is usual).
    - `beta_1`: share of the momentum in the direction of a step (default 0.9).
    - `beta_2`: decay of the momentum (default 0.99).
    """

    measures = True

    learning_rate: object = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        number("beta_1", self.beta_1, 0, 1)
        number("beta_2", self.beta_2, 0, 1)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",)

    def reference_update(self, w, g, slots, rate, step):
        (m,) = slots
        move = rate * np.sign(self.beta_1 * m + (1 - self.beta_1) * g)
        return w - move, [self.beta_2 * m + (1 - self.beta_2) * g]

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        self._launch(e, "lion", w, g, slots, control, decay, float(1 - self.beta_1), float(1 - self.beta_2))
