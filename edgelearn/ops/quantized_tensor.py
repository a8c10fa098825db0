"""Tensors as they are stored: floats; or encoded in a number format, with the record of their range."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.launch import In

from .formats import Format, NumberFormat, StoredType
from .tensor import Shape, Tensor

LARGEST = (1 << 31) - 1  # what an accumulator holds


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor in a number format.

    Arguments:
    - `tensor`: the encoded values; for integers also, simulated, the floats that they stand for.
    - `record`: the range (fields in kernels/include/range.h): (1, 16), or (16, channels) for a format with a range
      for each channel; None for formats that need none.
    - `format`: the number format.
    - `name`: selects the random numbers of stochastic rounding.
    """

    tensor: Tensor
    record: Tensor | None
    format: NumberFormat
    name: str = ""

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def read(self) -> tuple[In, ...]:
        return self.tensor.read, *self.record_read

    @property
    def record_read(self) -> tuple[In, ...]:
        return (self.record.read,) if self.record else ()

    @property
    def bounds(self) -> tuple[float, ...]:
        """The lowest and the highest integer of a format of integers."""
        return (float(self.format.least), float(self.format.most)) if isinstance(self.format, Format) else ()

    @property
    def is_stochastic(self) -> bool:
        return isinstance(self.format, Format) and self.format.rounding == "stochastic"


Stored = Tensor | QuantizedTensor


def tensor_of(x: Stored) -> Tensor:
    return x.tensor if isinstance(x, QuantizedTensor) else x


def is_integers(x: Stored) -> bool:
    """True for a tensor that integer kernels can multiply."""
    return tensor_of(x).dtype == "int8"


def reads(x: Stored) -> tuple[In, ...]:
    """INPUT_STORED in kernels/include/stored.h."""
    return x.read if isinstance(x, QuantizedTensor) else (x.read,)


def stored_macros(x: Stored) -> dict[str, Any]:
    """STORED, and with it PER_CHANNEL, of kernels/include/stored.h."""
    code = StoredType.of(tensor_of(x).dtype)
    return {"stored": code, "per_channel": isinstance(x, QuantizedTensor) and x.format.per_channel} if code else {}


def largest_sum(terms: int, *formats: NumberFormat) -> int:
    """The largest sum of `terms` products of two formats' integers, less their zero points."""
    return terms * prod(f.largest for f in formats if isinstance(f, Format))


def check_accumulators(layer: str, terms: int, *formats: NumberFormat) -> None:
    """Raises PlanError if a sum of `terms` products of two formats' integers, less their zero points, may overflow 32
    bits."""
    largest = largest_sum(terms, *formats)
    if largest > LARGEST:
        raise PlanError(
            f"'{layer}' adds up {terms:,} products of {' x '.join(str(f.bits) for f in formats)} bits, which can reach "
            f"{largest:,}, but accumulators hold {LARGEST:,}: use fewer bits or symmetric ranges, or keep it in fp32."
        )
