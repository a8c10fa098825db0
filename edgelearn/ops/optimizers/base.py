"""Base of the optimizers, as Keras defines it: a rule for a range of parameters, with clipping and an average."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, In, InOut
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.settings import InitSignature, check_arguments, is_number, number
from edgelearn.ops.tensor import ceil_div

CHUNK = 64  # blocks of 16 floats a work-item of a CPU updates
AVERAGE = "average"  # slot of the moving average of the weights
REFERENCE = "reference"  # slot of the weights at the first step


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizers.

    Arguments:
    - `learning_rate`: a number or a schedule (see edgelearn.train.schedules).
    - `weight_decay`: kernels shrink by learning_rate * weight_decay a step; biases and BatchNorm don't.
    - `clipnorm`: largest norm of the gradient of each parameter tensor; larger ones are scaled down (default: none).
    - `global_clipnorm`: largest norm of all gradients together (default: none).
    - `clipvalue`: largest absolute value of a gradient's values (default: none). One of the three at most.
    - `use_ema`: keep an exponential moving average of the trained weights on the device (default False); see
      Model.swap_averages and SwapEMAWeights.
    - `ema_momentum`: average = ema_momentum * average + (1 - ema_momentum) * weights after each step (default 0.99).
    - `proximal`: μ of the term μ/2 ‖w − w₀‖² in the loss, w₀ the trained weights before the first step (Li et al. 2020,
      "FedProx"; default 0: none). Its gradient isn't clipped.

    Raises PlanError for values out of range.
    """

    learning_rate: Any = 0.01
    weight_decay: float = 0.0
    clipnorm: float | None = field(default=None, kw_only=True)
    global_clipnorm: float | None = field(default=None, kw_only=True)
    clipvalue: float | None = field(default=None, kw_only=True)
    use_ema: bool = field(default=False, kw_only=True)
    ema_momentum: float = field(default=0.99, kw_only=True)
    proximal: float = field(default=0.0, kw_only=True)

    per_tensor: ClassVar[bool] = False  # `emit_update` gets one parameter tensor at a time, and may emit jobs
    measures: ClassVar[bool] = False  # its kernels leave the extremes of what they update (see Pieces)

    __signature__ = InitSignature()

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        check_arguments(cls, settings, PlanError)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if "emit_update" in vars(cls):  # a rule of its own, not that of the optimizer it is derived from
            cls.measures = vars(cls).get("measures", False)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors of state that each parameter has."""
        return ()

    @property
    def all_slots(self) -> tuple[str, ...]:
        """`slots`, the average if there is one, and the weights at the first step if there is a proximal term."""
        return (*self.slots, *([AVERAGE] if self.use_ema else []), *([REFERENCE] if self.proximal else []))

    @property
    def clips(self) -> bool:
        """True if gradients are clipped."""
        return any(limit is not None for limit in (self.clipnorm, self.global_clipnorm, self.clipvalue))

    def __post_init__(self) -> None:
        if not callable(self.learning_rate):
            if not isinstance(self.learning_rate, int | float | np.number):
                raise PlanError(f"learning_rate is a number or a schedule, not {self.learning_rate!r:.60}.")
            number("learning_rate", self.learning_rate, 0)
        number("weight_decay", self.weight_decay, 0)
        limits = [name for name in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(self, name) is not None]
        if len(limits) > 1:
            raise PlanError(f"Gradients are clipped in one way: {' or '.join(limits)}.")
        for name in limits:
            limit = getattr(self, name)
            if not is_number(limit) or limit <= 0:
                raise PlanError(f"{name} is a finite number above 0, or None, not {limit!r:.60}.")
        number("ema_momentum", self.ema_momentum, 0, 1)
        number("proximal", self.proximal, 0)

    def correction(self, step: int) -> float:
        """A factor of this step (from 1) that the host computes for the kernel."""
        return 1.0

    def second_correction(self, step: int) -> float:
        """As `correction`, for a rule that needs two."""
        return 1.0

    def reference_update(self, w: np.ndarray, g: np.ndarray, slots: list[np.ndarray], rate: float, step: int):
        """(new w, new slots) in the precision of the arrays; without decay, clipping and average."""
        raise NotImplementedError

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        """Emit the update of a range of parameters in memory; `decay`: with weight decay. An optimizer that `measures`
        leaves the extremes of the emitter's `pieces`, if it has any."""
        raise NotImplementedError

    def _launch(self, e, kernel, w, g, slots, control, decay, *settings, **macros) -> None:
        blocks, chunk, pieces = w.nbytes // 64, chunk_of(e), e.pieces
        items, measured = ceil_div(blocks, chunk), ()
        if pieces:
            items, measured, macros = pieces.count, pieces.arguments, macros | {"measured": True}
        e.launch(
            "optimizer.cl", kernel, (items,), InOut(w), In(g), control.scalars.read, control.counters.read, blocks,
            float(self.weight_decay if decay else 0.0), *measured, *map(InOut, slots), *settings, chunk=chunk, **macros,
        )  # fmt: skip


def chunk_of(e: Emitter) -> int:
    """Blocks that a work-item updates."""
    return 1 if e.traits.gpu else CHUNK
