"""Tensors of integers with the records of their ranges, and how kernels write results that may be quantized."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from edgelearn.errors import PlanError
from edgelearn.launch import Access, In

from .dropout import layer_code
from .emit import LINEAR, Emitter
from .formats import Format, Storage
from .quantize import RangeStatistics
from .tensor import Shape, Tensor

LARGEST = (1 << 31) - 1  # an accumulator holds


@dataclass(frozen=True)
class QuantizedTensor:
    """Integers of `format` in `tensor`, or the floats that they stand for, by the range in `record` (fields:
    kernels/include/range.h): (1, 16), or (16, channels) for a format with a range for each channel. `name` says
    which random numbers are drawn."""

    tensor: Tensor
    record: Tensor
    format: Format
    name: str = ""

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def read(self) -> tuple[In, In]:
        return self.tensor.read, self.record.read


@dataclass(frozen=True)
class Result:
    """How a kernel writes `y`: as floats, or quantized by the range that y's record has by then. What it writes is
    noted in `found`. Stochastic rounding is for training alone. With `accumulate` another share of it is there, as
    floats."""

    y: Tensor | QuantizedTensor
    found: RangeStatistics | None = None
    accumulate: bool = False

    @property
    def tensor(self) -> Tensor:
        return self.y.tensor if isinstance(self.y, QuantizedTensor) else self.y

    def macros(self, e: Emitter) -> dict[str, int]:
        return {
            "quantized": isinstance(self.y, QuantizedTensor),
            "written": Storage.of(self.tensor.dtype),
            "stochastic": self._draws(e),
            "statistics": self.found is not None,
            "traced": self.found is not None and self.found.traced,
            "accumulate": self.accumulate,
        }

    def arguments(self, e: Emitter) -> list[Access | int | float]:
        """RESULT_ARGUMENTS in kernels/include/result.h. Raises PlanError for shares that are integers."""
        t = self.tensor
        given: list[Access | int | float] = [t.update if self.accumulate else t.write]
        if isinstance(self.y, QuantizedTensor):
            if self.accumulate:
                raise PlanError(f"'{t.buffer.name}' is a sum of shares: add them up as floats, and quantize the sum.")
            given += [self.y.record.read, float(self.y.format.least), float(self.y.format.most)]
        if self._draws(e):
            given += [e.training.scalars.read, e.training.counters.read]
            given += [t.rows // t.images, t.blocks, layer_code(self.y.name)]
        if self.found:
            parts = self.found.parts
            given += [parts.update if self.found.add else parts.write, t.rows * t.channels, int(self.found.add)]
        return given

    def items(self, e: Emitter, tiles: int) -> int:
        """Work-items for so many tiles: a work-group for each record of what is found, or an item a tile."""
        return self.found.parts.rows * e.traits.group if self.found else tiles

    def _draws(self, e: Emitter) -> bool:
        return isinstance(self.y, QuantizedTensor) and self.y.format.rounding == "stochastic" and e.training is not None


@dataclass(frozen=True)
class QuantizedTarget:
    """As GradientTarget; `tensor`, and `mask` too, may be integers."""

    tensor: Tensor | QuantizedTensor
    mask: Tensor | QuantizedTensor | None = None
    activation: int = LINEAR
    accumulate: bool = False

    def result(self, found: RangeStatistics | None) -> Result:
        return Result(self.tensor, found, self.accumulate)

    @property
    def macros(self) -> dict[str, int]:
        """MASK and MASKED_BY in kernels/include/result.h."""
        macros = {"mask": self.mask is not None, "activation": self.activation}
        return macros | ({"masked_by": Storage.INT8} if isinstance(self.mask, QuantizedTensor) else {})

    @property
    def mask_arguments(self) -> tuple[In, ...]:
        if isinstance(self.mask, QuantizedTensor):
            return self.mask.read
        return () if self.mask is None else (self.mask.read,)


def check_accumulators(layer: str, terms: int, *formats: Format) -> None:
    """Raises PlanError where a sum of so many products of two formats' integers, less their zero points, could leave
    32 bits."""
    largest = terms * prod(f.most if f.symmetric else f.levels - 1 for f in formats)
    if largest > LARGEST:
        raise PlanError(
            f"'{layer}' adds up {terms:,} products of {' x '.join(str(f.bits) for f in formats)} bits, which can reach "
            f"{largest:,}, but accumulators hold {LARGEST:,}: use fewer bits or symmetric ranges, or keep it in fp32."
        )
