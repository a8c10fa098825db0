"""LAMB."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from edgelearn.launch import Buffer, In, InOut, Role
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter

from .adam import Adam
from .norms import parts_of


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam whose step in each parameter tensor is scaled to the tensor's norm, for large mini-batches (You et al.
    2020), as Keras's Lamb.

    Arguments: those of Adam. `weight_decay` shrinks the weights before the step.
    """

    per_tensor = True

    def correction(self, step: int) -> float:
        return 1 / (1 - self.beta_1**step)

    def second_correction(self, step: int) -> float:
        return 1 / sqrt(1 - self.beta_2**step)

    def reference_update(self, w, g, slots, rate, step):
        m = self.beta_1 * slots[0] + (1 - self.beta_1) * g
        v = self.beta_2 * slots[1] + (1 - self.beta_2) * g * g
        move = self.correction(step) * m / (self.second_correction(step) * np.sqrt(v) + self.epsilon)
        norms = np.linalg.norm(w), np.linalg.norm(move)
        return w - rate * (norms[0] / norms[1] if all(norms) else 1.0) * move, [m, v]

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        parts, count = parts_of(e, w.nbytes // 64)
        sums = e.tensor(f"{w.name} sums of squares", (2 * parts, 16), Role.PARTIAL)
        ratio = e.tensor(f"{w.name} trust ratio", (1, 16), Role.PARTIAL)
        blocks, epsilon = w.nbytes // 64, float(self.epsilon)
        decay_rate = float(self.weight_decay if decay else 0.0)
        paces = float(1 - self.beta_1), float(1 - self.beta_2)
        state, places = [control.scalars.read, control.counters.read], (blocks, count)
        e.job(
            "lamb.cl", "lamb_moments", parts, *map(InOut, slots), In(w), In(g), *state, sums.write, numbers=places,
            settings=(*paces, epsilon, decay_rate),
        )  # fmt: skip
        e.job("lamb.cl", "lamb_ratio", 1, sums.read, ratio.write, numbers=(parts,), whole=True)
        e.job(
            "lamb.cl", "lamb_step", parts, *map(In, slots), InOut(w), ratio.read, *state, numbers=places,
            settings=(epsilon, decay_rate),
        )  # fmt: skip
