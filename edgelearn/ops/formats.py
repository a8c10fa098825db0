"""Number formats of tensors: integers that stand for real numbers, and half precision.

Integers q stand for scale times (q - zero), by a range that always contains 0, so that 0 (padding, a ReLU's floor) is
exact. Kernels: kernels/include/stored.h, kernels/include/range.h.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

LEAST_SCALE = 2.0**-100  # of a range of nothing but 0: its values are 0 to any purpose, and 1 / scale is finite
ROUNDINGS = ("nearest", "stochastic")


class Storage(IntEnum):
    """The types that tensors are stored in, by the numbers that kernels/include/stored.h gives them."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2

    @staticmethod
    def of(dtype: str) -> Storage:
        """The storage of a dtype, such as "float16"."""
        return Storage[dtype.upper()]


@dataclass(frozen=True)
class Format:
    """Integers of `bits` bits (2 to 16). `symmetric` ranges reach as far below 0 as above, and zero is 0; others have
    a zero point. "nearest" rounds halves to even; "stochastic" rounds up with the probability of the fraction, which
    is unbiased (Gupta et al. 2015, section 3). `per_channel` formats have a range for each channel: for weights.

    Raises PlanError for what can't be.
    """

    bits: int = 8
    symmetric: bool = False
    rounding: str = "nearest"
    per_channel: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise PlanError(f"A quantized format has 2 to 16 bits, not {self.bits!r}.")
        if self.rounding not in ROUNDINGS:
            raise PlanError(f"Rounding is 'nearest' or 'stochastic', not {self.rounding!r}.")

    def __str__(self) -> str:
        words = [f"{self.bits} bits", "symmetric" if self.symmetric else "asymmetric"]
        return " ".join(words + ["stochastic"] * (self.rounding != "nearest") + ["per channel"] * self.per_channel)

    def with_bits(self, bits: int) -> Format:
        """The same with so many bits."""
        return replace(self, bits=bits)

    def to_dict(self) -> dict:
        """JSON-able; the inverse of `format_from`."""
        return asdict(self)

    @property
    def storage(self) -> str:
        """What a value is kept in: int8 also for fewer than 8 bits, of which the others then go unused."""
        return "int8" if self.bits <= 8 else "int16"

    @property
    def least(self) -> int:
        """The lowest integer."""
        return -self.most if self.symmetric else -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        """The highest integer."""
        return (1 << (self.bits - 1)) - 1

    @property
    def levels(self) -> int:
        """How many integers there are."""
        return self.most - self.least + 1

    def parameters(self, low, high) -> tuple[np.ndarray, np.ndarray]:
        """(scale, zero point) for ranges [low, high], widened to contain 0; in the arrays' own precision."""
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        width = np.maximum(-low, high) if self.symmetric else high - low
        steps = self.most if self.symmetric else self.levels - 1
        scale = np.maximum(width / low.dtype.type(steps), low.dtype.type(LEAST_SCALE))
        zero = np.zeros(np.shape(scale), np.int64)
        return scale, zero if self.symmetric else np.int64(np.rint(-low / scale)) + self.least

    def quantize(self, v, scale, zero, uniform: np.ndarray | None = None, inverse=None) -> np.ndarray:
        """int64 for values `v`. `uniform` numbers of [0, 1), one for each value, decide stochastic rounding. `inverse`
        is 1 / scale where a device has rounded it otherwise, as the divisions of some GPUs do.

        In the arrays' own precision: float32 gives what the kernels give. Raises PlanError when `uniform` is missing.
        """
        t = v * (np.ones((), np.asarray(scale).dtype) / scale if inverse is None else inverse)
        t = np.clip(t, self.least - zero, self.most - zero).astype(t.dtype)
        if self.rounding == "nearest":
            return np.int64(np.rint(t)) + zero
        if uniform is None:
            raise PlanError("Stochastic rounding needs uniform numbers: give one for each value.")
        floor = np.floor(t)
        return np.int64(floor + (uniform < t - floor)) + zero

    def dequantize(self, q, scale, zero) -> np.ndarray:
        """The values that integers `q` stand for, in the precision of `scale`."""
        return (np.asarray(q) - zero).astype(np.asarray(scale).dtype) * scale


@dataclass(frozen=True)
class Float16:
    """IEEE 754 half precision (binary16): 11 bits from 6.1e-5 to 65504, multiples of 6.0e-8 (2^-24) below. Values are
    rounded to nearest, ties to even: those from 65520 on become infinities, which the step notices and fails by, and
    those up to 3.0e-8 become 0, which nothing notices. No range is needed."""

    bits: ClassVar[int] = 16
    storage: ClassVar[str] = "float16"
    per_channel: ClassVar[bool] = False

    def __str__(self) -> str:
        return "half precision"

    def with_bits(self, bits: int) -> Float16:
        """Itself: that many bits are a matter of integers."""
        return self

    def to_dict(self) -> str:
        """JSON-able; the inverse of `format_from`."""
        return self.storage

    def round(self, v) -> np.ndarray:
        """The halves nearest to `v`, in v's own type."""
        with np.errstate(over="ignore"):
            return np.asarray(v).astype(np.float16).astype(np.asarray(v).dtype)


AnyFormat = Format | Float16


def format_from(found: dict | str) -> AnyFormat:
    """What `to_dict` gave. Raises TypeError or PlanError for what isn't a format."""
    return Float16() if found == Float16.storage else Format(**found)
