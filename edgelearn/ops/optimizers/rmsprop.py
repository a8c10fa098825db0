"""RMSprop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.launch import Buffer
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.settings import number

from .adam import check_epsilon
from .base import Optimizer


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Gradients divided by the root of the average of their squares (Hinton 2012), as Keras's RMSprop.

    Arguments: those of Optimizer, and
    - `learning_rate`: a number or a Schedule (default 0.001).
    - `rho`: decay of the averages (default 0.9).
    - `momentum`: of the steps (default 0).
    - `epsilon`: added to the average of the squares, under the root (default 1e-7).
    - `centered`: subtract the square of the average gradient from the average of the squares (default False).
    """

    measures = True

    learning_rate: object = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        number("rho", self.rho, 0, 1)
        number("momentum", self.momentum, 0, 1)
        check_epsilon(self.epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity", *(["momentum"] if self.momentum else []), *(["average gradient"] if self.centered else []))

    def reference_update(self, w, g, slots, rate, step):
        state = dict(zip(self.slots, slots, strict=True))
        square = state["velocity"] = self.rho * state["velocity"] + (1 - self.rho) * g * g
        if self.centered:
            mean = state["average gradient"] = self.rho * state["average gradient"] + (1 - self.rho) * g
            square = square - mean * mean
        move = rate * g / np.sqrt(square + self.epsilon)
        if self.momentum:
            move = state["momentum"] = self.momentum * state["momentum"] + move
        return w - move, list(state.values())

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        settings = (float(1 - self.rho), float(self.epsilon), float(self.momentum))
        self._launch(
            e, "rmsprop", w, g, slots, control, decay, *settings, momentum=bool(self.momentum), centered=self.centered
        )
