"""Halves, in IEEE's format or bfloat16: tensors of halves or, simulated, of floats that halves can hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from . import rows
from .emit import Emitter
from .formats import NumberFormat, StoredType
from .quantize import kernel_numbers, weight_parts
from .quantized_copy import emit_to_floats
from .range_statistics import RangeStatistics
from .target import Target
from .tensor import Tensor
from .transpose import KernelView


class Halves(NumberFormat):
    """Base of the formats of 16 bits."""

    bits = 16

    def decode(self, encoded) -> np.ndarray:
        return np.asarray(encoded).astype(np.float32)

    def emit_encode(self, e: Emitter, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
        count, rest, groups = rows.split(e, x, statistics.parts.rows if statistics else 0)
        source = (x.update,) if y is x else (x.read, y.write)
        e.launch(
            "half.cl", "round_halves", (rows.items(e, groups),), *source, *rows.statistics_arguments(x, statistics),
            count, rest, group=rows.group_size(e), whole=True, vector_width=e.traits.vector,
            statistics=statistics is not None, in_place=y is x, written=StoredType.of(y.dtype),
            format=StoredType.of(self.storage),
        )  # fmt: skip

    def emit_encode_weights(
        self, e: Emitter, view: KernelView, y: Tensor, statistics: RangeStatistics | None = None
    ) -> None:
        e.job(
            "half.cl", "weight_halves", weight_parts(y) * e.traits.group, *view.read, y.write,
            *([statistics.parts.write] if statistics else []),
            numbers=(*kernel_numbers(view, y), prod(y.shape)), whole=True, statistics=statistics is not None,
            written=StoredType.of(y.dtype), format=StoredType.of(self.storage), **view.macros,
        )  # fmt: skip

    def emit_decode(self, e: Emitter, x: Tensor, y: Tensor) -> None:
        emit_to_floats(e, x, Target(y))


@dataclass(frozen=True)
class Float16(Halves):
    """IEEE 754 half precision (binary16): 11 bits from 6.1e-5 to 65504, multiples of 6.0e-8 (2^-24) below.

    Values are rounded to nearest, ties to even. Those from 65520 on become infinities, which makes the step fail; those
    up to 3.0e-8 become 0, which nothing detects. Needs no range.
    """

    @property
    def storage(self) -> str:
        return "float16"

    def __str__(self) -> str:
        return "half precision"

    def to_dict(self) -> str:
        return "float16"

    def encode(self, v) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(v).astype(np.float16)


@dataclass(frozen=True)
class BFloat16(Halves):
    """bfloat16: the upper half of a float32, 8 bits of any size that float32 has.

    Values are rounded to nearest, ties to even. NumPy has no such type: encoded values are uint16.
    """

    @property
    def storage(self) -> str:
        return "bfloat16"

    def __str__(self) -> str:
        return "bfloat16"

    def to_dict(self) -> str:
        return "bfloat16"

    def encode(self, v) -> np.ndarray:
        v = np.asarray(v, np.float32)
        bits = v.view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (np.where(np.isnan(v), bits | 0x400000, rounded) >> 16).astype(np.uint16)

    def decode(self, encoded) -> np.ndarray:
        return (np.asarray(encoded).astype(np.uint32) << 16).view(np.float32)
