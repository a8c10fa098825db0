"""Gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.settings import number

from .base import Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent; with `momentum` v = momentum v - rate g, w += v; `nesterov` looks ahead (Sutskever 2013)."""

    measures = True

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        number("momentum", self.momentum, 0, 1)
        if self.nesterov and not self.momentum:
            raise PlanError("nesterov looks ahead along the momentum: give SGD one too.")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def reference_update(self, w, g, slots, rate, step):
        if not self.momentum:
            return w - rate * g, []
        v = self.momentum * slots[0] - rate * g
        return w + (self.momentum * v - rate * g if self.nesterov else v), [v]

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        if self.momentum:
            settings = (float(self.momentum), int(self.nesterov))
            self._launch(e, "sgd_momentum", w, g, slots, control, decay, *settings)
        else:
            self._launch(e, "sgd", w, g, slots, control, decay)
