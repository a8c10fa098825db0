"""Range observers: they choose the range that the next tensor is quantized with.

A static range is known before the tensor is written, which takes one pass over memory. A dynamic range depends on the
tensor, which is written, read for its statistics, and read again to be quantized. Static ranges change once a
mini-batch; dynamic ones belong to a micro-batch. In the first mini-batch, static observers measure the tensors' ranges.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from edgelearn.errors import FormatError, PlanError

from .registry import enter


@dataclass(frozen=True)
class Observer:
    """Base of the observers.

    A new observer is a frozen dataclass that overrides `next`. Its ranges are static, and it runs on the host, which
    reads 64 bytes of statistics a tensor after every mini-batch and writes the next range.

    >>> @dataclass(frozen=True)
    ... class Widest(Observer):
    ...     def next(self, low, high, least, most, updates):
    ...         return np.minimum(low, least), np.maximum(high, most)
    """

    registry: ClassVar[dict[str, type[Observer]]] = {}
    static: ClassVar[bool] = True  # the range in training is known before the tensor is written
    remembers: ClassVar[bool] = True  # evaluation uses the range of training; else that of the tensor
    on_host: ClassVar[bool] = True  # `next` computes the range; else kernels do the same

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        enter(Observer.registry, cls.__name__, cls, "the observer")

    def next(self, low, high, least, most, updates) -> tuple[float, float]:
        """(low, high), which contains 0, for the next mini-batch.

        Arguments:
        - `low`, `high`: the range of this mini-batch.
        - `least`, `most`: the smallest and the largest value in this mini-batch.
        - `updates`: number of mini-batches before this one.
        """
        raise NotImplementedError(f"{type(self).__name__} computes no range: override `next`.")

    @property
    def start(self) -> tuple[float, float] | None:
        """The initial range; None to measure the first mini-batch."""
        return None

    def is_due(self, step: int) -> bool:
        """True if ranges are searched for in this step (from 1)."""
        return False

    def to_dict(self) -> dict:
        return {"observer": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_dict(data: dict) -> Observer:
        """Raises FormatError for other data than that of `to_dict`."""
        settings = dict(data)
        name = settings.pop("observer", None)
        if name not in Observer.registry:
            raise FormatError(f"There is no observer {name!r}. Choose {', '.join(sorted(Observer.registry))}.")
        try:
            return Observer.registry[name](**settings)
        except TypeError as error:
            raise FormatError(f"The settings of the observer {name} don't fit: {error}.") from None


class Blending(Observer):
    """Base of the observers whose next range is momentum * range + (1 - momentum) * observed range. A momentum of 1
    keeps the first range."""

    momentum: float
    on_host = False

    def next(self, low, high, least, most, updates):
        pace = self.momentum if updates else 0.0
        return least + pace * (low - least), most + pace * (high - most)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= 1:
            raise PlanError(f"The momentum of a range is at least 0 and at most 1, not {self.momentum}.")


@dataclass(frozen=True)
class CurrentMinMax(Blending):
    """The range of the tensor itself: dynamic."""

    static = remembers = False
    momentum = 0.0


@dataclass(frozen=True)
class RunningMinMax(Blending):
    """A moving average of the tensors' ranges that includes the current one: dynamic. Evaluation uses the average.

    Arguments:
    - `momentum`: share of the range before, 0 to 1 (default 0.9).

    Raises PlanError for another momentum.
    """

    static = False
    momentum: float = 0.9


@dataclass(frozen=True)
class InHindsightMinMax(Blending):
    """A moving average of the ranges of earlier mini-batches: static (Fournarakis and Nagel 2021, section 4.1; Chmiel
    et al. 2023, equation 18): range_t = (1 - momentum) * observed_(t-1) + momentum * range_(t-1). The first range is
    that of the first mini-batch.

    Arguments:
    - `momentum`: share of the range before, 0 to 1 (default 0.9).

    Raises PlanError for another momentum.
    """

    momentum: float = 0.9


@dataclass(frozen=True)
class Fixed(Observer):
    """The same range in every step.

    Arguments:
    - `low`, `high`: the range (default -1 and 1).

    Raises PlanError if it isn't finite or doesn't contain 0.
    """

    low: float = -1.0
    high: float = 1.0
    on_host = False

    def __post_init__(self) -> None:
        if not (self.low <= 0 <= self.high and self.low < self.high < float("inf") and self.low > -float("inf")):
            raise PlanError(f"A fixed range contains 0 and is finite, unlike [{self.low}, {self.high}].")

    @property
    def start(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True)
class Searching(Observer):
    """Base of the observers that try 16 ranges: the tensor's own, and ranges that shrink by equal factors down to
    `smallest` times that. They search in the first step and every `every` steps, and are static in between."""

    every: int = 100
    smallest: float = 1 / 64
    on_host = False

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.smallest < 1:
            raise PlanError(
                f"Ranges are searched for every 1 or more steps, down to a share between 0 and 1, not every "
                f"{self.every} down to {self.smallest}."
            )

    @property
    def ratio(self) -> float:
        return self.smallest ** (1 / 15)

    def is_due(self, step: int) -> bool:
        return (step - 1) % self.every == 0


@dataclass(frozen=True)
class DSGC(Searching):
    """Direction-sensitive gradient clipping (Zhu et al. 2020, "Towards unified INT8 training for convolutional neural
    network", section 3.3): the range with the largest cosine between the quantized tensor and the tensor."""


@dataclass(frozen=True)
class Percentile(Searching):
    """The narrowest of the ranges that holds at least `percent` of the values."""

    percent: float = 99.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percent <= 100:
            raise PlanError(f"A percentile is above 0 and at most 100, not {self.percent}.")
