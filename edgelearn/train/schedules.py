"""Learning rates that change with the step, as Keras's learning-rate schedules."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields
from math import ceil, cos, inf, pi
from numbers import Real
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.ops.base import is_number, number


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a function of the update's number, from 0. Numbers must be finite, and `decay_steps`,
    `first_decay_steps` and `t_mul` at least 1: anything else raises PlanError."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 1 if field.name in ("decay_steps", "first_decay_steps", "t_mul") else -inf
            if not isinstance(value := getattr(self, field.name), bool):
                number(f"{field.name} of {type(self).__name__}", value, least)

    def __call__(self, step: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class _Decay(Schedule):
    initial_learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def done(self, step: int) -> float:
        """Update / decay_steps, or its whole part."""
        return step // self.decay_steps if self.staircase else step / self.decay_steps


@dataclass(frozen=True)
class ExponentialDecay(_Decay):
    """initial_learning_rate * decay_rate ** (update / decay_steps).

    Arguments:
    - `initial_learning_rate`: rate of the first update.
    - `decay_steps`: updates in which the rate is multiplied by `decay_rate`.
    - `decay_rate`: that factor.
    - `staircase`: whole powers only (default False).

    Raises PlanError for decay_steps below 1.
    """

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * self.decay_rate ** self.done(step)


@dataclass(frozen=True)
class InverseTimeDecay(_Decay):
    """initial_learning_rate / (1 + decay_rate * update / decay_steps).

    Arguments:
    - `initial_learning_rate`: rate of the first update.
    - `decay_steps`: updates in which the divisor grows by `decay_rate`.
    - `decay_rate`: that number.
    - `staircase`: whole multiples only (default False).

    Raises PlanError for decay_steps below 1.
    """

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate / (1 + self.decay_rate * self.done(step))


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """From the initial rate down along half a cosine (Loshchilov and Hutter 2017, equation 5), after linear growth from
    0.

    Arguments:
    - `initial_learning_rate`: highest rate.
    - `decay_steps`: updates from there to the end of the cosine.
    - `alpha`: share of the initial rate that it ends with (default 0).
    - `warmup_steps`: updates of linear growth (default 0).

    Raises PlanError for decay_steps below 1.
    """

    initial_learning_rate: float
    decay_steps: int
    alpha: float = 0.0
    warmup_steps: int = 0

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.initial_learning_rate * step / self.warmup_steps
        done = min(step - self.warmup_steps, self.decay_steps) / self.decay_steps
        return self.initial_learning_rate * (self.alpha + (1 - self.alpha) * 0.5 * (1 + cos(pi * done)))


@dataclass(frozen=True)
class CosineDecayRestarts(Schedule):
    """Cosine decay that starts again and again (Loshchilov and Hutter 2017).

    Arguments:
    - `initial_learning_rate`: rate of the first update.
    - `first_decay_steps`: updates of the first period.
    - `t_mul`: each period is so many times as long as the one before (default 2).
    - `m_mul`: each period begins with so many times the rate of the one before (default 1).
    - `alpha`: share of the initial rate that periods end with (default 0).

    Raises PlanError for first_decay_steps below 1, or a t_mul below 1.
    """

    initial_learning_rate: float
    first_decay_steps: int
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0

    def __call__(self, step: int) -> float:
        rate, period, begin = self.initial_learning_rate, float(self.first_decay_steps), 0.0
        while step >= begin + period:
            begin, period, rate = begin + period, period * self.t_mul, rate * self.m_mul
        share = 0.5 * (1 + cos(pi * (step - begin) / period))
        return rate * share * (1 - self.alpha) + self.initial_learning_rate * self.alpha


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """From the initial rate to the end rate along a power of the share of updates left.

    Arguments:
    - `initial_learning_rate`: rate of the first update.
    - `decay_steps`: updates to the end rate.
    - `end_learning_rate`: that rate (default 0.0001).
    - `power`: 1 is a straight line (default 1).
    - `cycle`: after decay_steps begin again, with a longer period (default False).

    Raises PlanError for decay_steps below 1.
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __call__(self, step: int) -> float:
        steps = self.decay_steps * max(1, ceil(step / self.decay_steps)) if self.cycle else self.decay_steps
        left = 1 - min(step, steps) / steps
        return (self.initial_learning_rate - self.end_learning_rate) * left**self.power + self.end_learning_rate


@dataclass(frozen=True)
class PiecewiseConstantDecay(Schedule):
    """values[0] up to and including update boundaries[0], then values[1], and so on.

    Arguments:
    - `boundaries`: numbers of updates, ascending.
    - `values`: learning rates, one more than boundaries.

    Raises PlanError for other numbers of them, or boundaries that don't ascend.
    """

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        both = self.boundaries, self.values
        lists = all(isinstance(given, tuple | list) for given in both)
        if not (
            lists
            and all(is_number(each) for given in both for each in given)
            and len(self.values) == len(self.boundaries) + 1
            and list(self.boundaries) == sorted(self.boundaries)
        ):
            raise PlanError(
                f"A piecewise constant rate has ascending boundaries and one value more than these, not boundaries "
                f"{self.boundaries!r} and values {self.values!r}."
            )

    def __call__(self, step: int) -> float:
        return self.values[bisect_left(self.boundaries, step)]


def rate_at(learning_rate: Any, step: int) -> float:
    """Return the learning rate of update `step`, counted from 0. Raises PlanError if it is negative or not finite."""
    value: Any = learning_rate(step) if callable(learning_rate) else learning_rate
    if not is_number(value) or value < 0:
        shown = float(value) if isinstance(value, Real) else repr(value)
        raise PlanError(f"A learning rate is a finite number that isn't negative, but update {step + 1} has {shown}.")
    return float(value)
