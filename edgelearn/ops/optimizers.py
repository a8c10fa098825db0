"""Optimizers, as Keras defines them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, In, InOut, Out

from .control import Control
from .emit import Emitter
from .tensor import ceil_div

CHUNK = 64  # blocks of 16 floats a work-item of a CPU updates


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizers.

    Arguments:
    - `learning_rate`: a number or a schedule (see edgelearn.train.schedules).
    - `weight_decay`: kernels shrink by learning_rate * weight_decay a step; biases and BatchNorm don't.

    Raises PlanError for values out of range.
    """

    learning_rate: object = 0.01
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors of state that each parameter has."""
        return ()

    def __post_init__(self) -> None:
        _check(0 <= self.weight_decay < inf, f"weight_decay is finite and not negative, not {self.weight_decay}.")

    def correction(self, step: int) -> float:
        """A factor of this step (from 1) that the host computes for the kernel."""
        return 1.0

    def reference_update(self, w: np.ndarray, g: np.ndarray, slots: list[np.ndarray], rate: float, step: int):
        """(new w, new slots) in the precision of the arrays; without decay."""
        raise NotImplementedError

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        """Emit the update of a range of parameters in memory; `decay`: with weight decay."""
        raise NotImplementedError

    def _launch(self, e, kernel, w, g, slots, control, decay, *settings) -> None:
        blocks, chunk = w.nbytes // 64, chunk_of(e)
        e.launch(
            "optimizer.cl", kernel, (ceil_div(blocks, chunk),), InOut(w), In(g), control.scalars.read,
            control.counters.read, blocks, float(self.weight_decay if decay else 0.0), *map(InOut, slots), *settings,
            chunk=chunk,
        )  # fmt: skip


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent; with `momentum` v = momentum v - rate g, w += v; `nesterov` looks ahead (Sutskever 2013)."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(0 <= self.momentum < 1, f"momentum is at least 0 and below 1 (usual is 0.9), not {self.momentum}.")
        _check(bool(self.momentum) or not self.nesterov, "nesterov looks ahead along the momentum: give it one too.")

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


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); with `weight_decay` it is AdamW (Loshchilov and Hutter 2019).

    Arguments:
    - `learning_rate`: a number or a Schedule (default 0.001).
    - `beta_1`, `beta_2`: decay of the averages of gradients and of their squares (default 0.9 and 0.999).
    - `epsilon`: added to the root of the squares' average (default 1e-7).
    """

    learning_rate: object = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first moment", "second moment")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta_1", "beta_2"):
            beta = getattr(self, name)
            _check(0 <= beta < 1, f"{name} is at least 0 and below 1, not {beta}.")
        _check(0 < self.epsilon < inf, f"epsilon is above 0 and finite (usual is 1e-7), not {self.epsilon}.")

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


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise PlanError(f"Of an optimizer, {problem}")


def chunk_of(e: Emitter) -> int:
    return 1 if e.traits.gpu else CHUNK


def emit_commit(e: Emitter, source: Buffer, target: Buffer, control: Control) -> None:
    """Emit target = source, unless a gradient of this mini-batch isn't finite."""
    blocks, chunk = source.nbytes // 64, chunk_of(e)
    e.launch(
        "optimizer.cl", "commit", (ceil_div(blocks, chunk),), In(source), Out(target), control.counters.read, blocks,
        chunk=chunk,
    )  # fmt: skip
