"""Optimizers, as Keras defines them: a rule for a range of parameters, with clipping, an average of the weights and a
proximal term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import sqrt
from typing import Any, ClassVar, Self

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Access, Buffer, In, InOut, Out, Role

from .base import InitSignature, check_arguments, is_number, number
from .emit import Control, Emitter
from .tensor import Tensor, ceil_div

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
    - `learning_rates`: factors of the learning rate by patterns of layers or parameters, as of Network.freeze, such as
      {"conv*": 0.1, "*/bias": 2}; of several patterns that match, the last one counts (default: 1 for all).
    - `weight_decays`: other weight decays by pattern, also of biases and BatchNorm (default: none).

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
    learning_rates: Any = field(default=(), kw_only=True)
    weight_decays: Any = field(default=(), kw_only=True)

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
        for name in ("learning_rates", "weight_decays"):
            object.__setattr__(self, name, _by_pattern(name, getattr(self, name)))

    def group_of(self, name: str, decays: bool) -> tuple[float, float]:
        """(factor of the learning rate, weight decay) of the parameter `name`, "layer/role"; `decays`: it is a
        kernel."""
        rate, decay = 1.0, self.weight_decay if decays else 0.0
        for pattern, value in self.learning_rates:
            rate = value if matches(pattern, name) else rate
        for pattern, value in self.weight_decays:
            decay = value if matches(pattern, name) else decay
        return rate, decay

    def correction(self, step: int) -> float:
        """A factor of this step (from 1) that the host computes for the kernel."""
        return 1.0

    def second_correction(self, step: int) -> float:
        """As `correction`, for a rule that needs two."""
        return 1.0

    def reference_update(self, w: np.ndarray, g: np.ndarray, slots: list[np.ndarray], rate: float, step: int):
        """(new w, new slots) in the precision of the arrays; without decay, clipping and average."""
        raise NotImplementedError

    @property
    def rule(self) -> tuple[str, tuple[float | int, ...], dict[str, int]]:
        """The kernel of kernels/optimizer.cl that `emit_update` launches, its settings and its macros."""
        raise NotImplementedError

    def emit_update(self, e: Emitter, w: Buffer, g: Buffer, slots: list[Buffer], control: Control, decay: bool) -> None:
        """Emit the update of a range of parameters in memory; `decay`: with weight decay. An optimizer that `measures`
        leaves the extremes of the emitter's `pieces`, if it has any. Default: by `rule`."""
        kernel, settings, macros = self.rule
        self._launch(e, kernel, w, g, slots, control, decay, *settings, **macros)

    def _launch(self, e, kernel, w, g, slots, control, decay, *settings, **macros) -> None:
        pieces, measured = e.pieces, ()
        if pieces:
            measured, macros = pieces.arguments, macros | {"measured": True}
        _emit_over(
            e, "optimizer.cl", kernel, w, [InOut(w), In(g), control.scalars.read, control.counters.read],
            float(self.weight_decay if decay else 0.0), *measured, *map(InOut, slots), *settings,
            items=pieces.count if pieces else 0, **macros,
        )  # fmt: skip


def matches(pattern: str, name: str) -> bool:
    """True if the parameter "layer/role" matches a pattern; one without a slash is that of a layer."""
    return fnmatchcase(name, pattern if "/" in pattern else f"{pattern}/*")


def _by_pattern(name: str, given: Any) -> tuple[tuple[str, float], ...]:
    """Numbers by pattern as pairs, which can be a key of a cache. Raises PlanError for anything else."""
    pairs = tuple(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise PlanError(
                f"{name} is a dictionary of numbers by pattern, such as {{'conv*': 0.1}}, not {given!r:.60}."
            )
        number(f"{name}['{pair[0]}']", pair[1], 0)
    return tuple((pattern, float(value)) for pattern, value in pairs)


def _emit_over(
    e: Emitter, source: str, kernel: str, w: Buffer, accesses: Sequence[Access], *settings: Any, items: int = 0,
    **macros: Any,
) -> None:  # fmt: skip
    """Launch a kernel that goes through memory like `w` in chunks of blocks, or in `items` pieces."""
    blocks, chunk = w.nbytes // 64, chunk_of(e)
    grid = (items or ceil_div(blocks, chunk),)
    e.launch(source, kernel, grid, *accesses, blocks, *settings, chunk=chunk, **macros)


def chunk_of(e: Emitter) -> int:
    """Blocks that a work-item updates."""
    return 1 if e.traits.gpu else CHUNK


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

    @property
    def rule(self) -> tuple[str, tuple[float | int, ...], dict[str, int]]:
        if not self.momentum:
            return "sgd", (), {}
        return "sgd_momentum", (float(self.momentum), int(self.nesterov)), {}


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

    @property
    def rule(self) -> tuple[str, tuple[float | int, ...], dict[str, int]]:
        return "adam", (float(1 - self.beta_1), float(1 - self.beta_2), float(self.epsilon)), {}


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


PARTS = 256  # most parts in which a GPU adds up a tensor's squares


def parts_of(e: Emitter, blocks: int) -> tuple[int, int]:
    """(parts, blocks a part) in which the squares of a tensor of `blocks` blocks are added up."""
    count = max(ceil_div(blocks, PARTS), 4) if e.traits.gpu else CHUNK
    return ceil_div(blocks, count), count


@dataclass(frozen=True)
class Clipping:
    """The clipping of the gradients of a mini-batch, in two parts: `emit_factors` before the check for NaN and
    infinity, which then sees a norm that overflows, and `emit` after it, with what the first returned.

    Arguments:
    - `optimizer`: its limits.
    - `gradients`: those of each parameter tensor.
    - `whole`: the memory of all of them.
    - `control`: numbers shared with the host.
    """

    optimizer: Optimizer
    gradients: Sequence[Buffer]
    whole: Buffer
    control: Control

    @property
    def clipped(self) -> Sequence[Buffer]:
        """The gradients that are clipped by a norm of their own."""
        return [self.whole] if self.optimizer.global_clipnorm is not None else self.gradients

    def emit_factors(self, e: Emitter) -> list[Tensor]:
        """Emit the jobs for the factors of clipping by a norm, and return these."""
        factors: list[Tensor] = []
        limit = self.optimizer.clipnorm if self.optimizer.global_clipnorm is None else self.optimizer.global_clipnorm
        for g in self.clipped if limit is not None else []:
            blocks = g.nbytes // 64
            parts, count = parts_of(e, blocks)
            sums = e.tensor(f"{g.name} sums of squares", (parts, 16), Role.PARTIAL)
            factors.append(e.tensor(f"{g.name} clipping factor", (1, 16), Role.PARTIAL))
            flags = e.tensor(f"{g.name} norm flags", (1, 16), Role.CHECK)
            e.job("norms.cl", "square_sums", parts, In(g), sums.write, numbers=(blocks, count))
            e.job(
                "norms.cl", "clip_factor", 1, sums.read, factors[-1].write, flags.write, numbers=(parts,),
                settings=(float(limit or 0),), whole=True,
            )  # fmt: skip
        e.emit_jobs()
        return factors

    def emit(self, e: Emitter, factors: Sequence[Tensor]) -> None:
        """Emit the clipping itself."""
        counters = self.control.counters
        if self.optimizer.clipvalue is not None:
            accesses = [InOut(self.whole), counters.read]
            _emit_over(e, "norms.cl", "clip_values", self.whole, accesses, float(self.optimizer.clipvalue))
            return
        for g, factor in zip(self.clipped, factors, strict=True):
            blocks = g.nbytes // 64
            parts, count = parts_of(e, blocks)
            accesses = InOut(g), factor.read, counters.read
            e.job("norms.cl", "clip_by_factor", parts, *accesses, numbers=(blocks, count))
        e.emit_jobs()


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

    @property
    def rule(self) -> tuple[str, tuple[float | int, ...], dict[str, int]]:
        return "lion", (float(1 - self.beta_1), float(1 - self.beta_2)), {}


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

    @property
    def rule(self) -> tuple[str, tuple[float | int, ...], dict[str, int]]:
        settings = float(1 - self.rho), float(self.epsilon), float(self.momentum)
        return "rmsprop", settings, {"momentum": bool(self.momentum), "centered": self.centered}


def emit_average(e: Emitter, optimizer: Optimizer, w: Buffer, average: Buffer, control: Control) -> None:
    """Emit average += (w - average) * (1 - ema_momentum); the first step sets it to w, as in Keras."""
    accesses = [InOut(average), In(w), control.scalars.read, control.counters.read]
    _emit_over(e, "optimizer.cl", "moving_average", w, accesses, float(1 - optimizer.ema_momentum))


def emit_proximal(e: Emitter, optimizer: Optimizer, w: Buffer, g: Buffer, reference: Buffer, control: Control) -> None:
    """Emit g += proximal (w - reference); the first step sets the reference to w."""
    accesses = [InOut(g), InOut(reference), In(w), control.scalars.read, control.counters.read]
    _emit_over(e, "optimizer.cl", "proximal", w, accesses, float(optimizer.proximal))


def emit_commit(e: Emitter, source: Buffer, target: Buffer, control: Control) -> None:
    """Emit target = source, unless a gradient of this mini-batch isn't finite."""
    _emit_over(e, "optimizer.cl", "commit", source, [In(source), Out(target), control.counters.read])


NAMES: dict[str, type[Optimizer]] = {
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop, "lion": Lion, "lamb": LAMB,
}  # fmt: skip


def as_optimizer(optimizer: Any) -> Optimizer:
    """Return an optimizer, given as an object or by its name in Keras. Raises PlanError for anything else."""
    if isinstance(optimizer, str) and optimizer.lower() in NAMES:
        return NAMES[optimizer.lower()]()
    if not isinstance(optimizer, Optimizer):
        raise PlanError(
            f"An optimizer is an object such as SGD(0.01) or Adam(), or one of the names {', '.join(NAMES)}, not "
            f"{optimizer!r:.60}."
        )
    return optimizer
