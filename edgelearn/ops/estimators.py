"""Range estimators: which range the next tensor is quantized with.

A static range is known before the tensor is written, which then needs one pass; a dynamic one depends on the tensor
itself, which is written, read for its statistics, and read again. Ranges move once a mini-batch; a dynamic range is
that of the micro-batch at hand. Before a static estimator has seen anything, the first mini-batch measures its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from edgelearn.errors import FormatError, PlanError


@dataclass(frozen=True)
class Estimator:
    """Base of the estimators. One of your own is a frozen dataclass that overrides `next`: its ranges are static, and
    it runs on the host, which after every mini-batch reads what was found, 64 bytes a tensor, and writes what follows.

    >>> @dataclass(frozen=True)
    ... class Widest(Estimator):
    ...     def next(self, low, high, least, most, updates):
    ...         return np.minimum(low, least), np.maximum(high, most)
    """

    registry: ClassVar[dict[str, type[Estimator]]] = {}
    static: ClassVar[bool] = True  # whether training knows the range before the tensor is there
    remembers: ClassVar[bool] = True  # whether evaluation takes the range from training; else from the tensor
    on_host: ClassVar[bool] = True  # whether `next` is what moves the range; else kernels do the same

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        Estimator.registry[cls.__name__] = cls

    def next(self, low, high, least, most, updates) -> tuple[float, float]:
        """(low, high) of a tensor for the next mini-batch, from the range in use, the least and the most that this one
        held, and how many mini-batches came before it. The range contains 0."""
        raise NotImplementedError(f"{type(self).__name__} doesn't say what the next range is: override `next`.")

    @property
    def start(self) -> tuple[float, float] | None:
        """A range to start with, in place of the first mini-batch's own."""
        return None

    def is_due(self, step: int) -> bool:
        """Whether ranges are searched for in step `step` (from 1), not only in the first."""
        return False

    def to_dict(self) -> dict:
        return {"estimator": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_dict(found: dict) -> Estimator:
        """Raises FormatError for what `to_dict` doesn't write."""
        settings = dict(found)
        name = settings.pop("estimator", None)
        if name not in Estimator.registry:
            raise FormatError(
                f"There is no range estimator {name!r}: known are {', '.join(sorted(Estimator.registry))}."
            )
        try:
            return Estimator.registry[name](**settings)
        except TypeError as error:
            raise FormatError(f"The settings of the range estimator {name} don't fit: {error}.") from None


class Blending(Estimator):
    """The base of estimators whose next range is `momentum` times the last, and for the rest what was found. A momentum
    of 1 keeps the first range for good."""

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
    """The least and the most of the tensor itself."""

    static = remembers = False
    momentum: ClassVar[float] = 0.0


@dataclass(frozen=True)
class RunningMinMax(Blending):
    """A moving average of the least and the most, the tensor at hand included. Evaluation uses the average as it is."""

    static = False
    momentum: float = 0.9


@dataclass(frozen=True)
class InHindsightMinMax(Blending):
    """A moving average of the least and the most of the mini-batches before (Fournarakis and Nagel 2021, section 4.1;
    Chmiel et al. 2023, equation 18, restates it): range_t = (1 - momentum) found_(t-1) + momentum range_(t-1). The
    first range is the first mini-batch's own."""

    momentum: float = 0.9


@dataclass(frozen=True)
class Fixed(Estimator):
    """Always [low, high]."""

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
class Searching(Estimator):
    """The base of estimators that try 16 ranges: the tensor's own, cut off at distances from 0 that shrink evenly, by
    factors, down to `smallest` times its reach; in the first step and every `every` steps. In between they are static.
    """

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
    network", section 3.3): the range whose integers point most nearly where the tensor does, by their cosine."""


@dataclass(frozen=True)
class Percentile(Searching):
    """The narrowest of the ranges that holds `percent` of the values or more."""

    percent: float = 99.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percent <= 100:
            raise PlanError(f"A percentile is above 0 and at most 100, not {self.percent}.")
