"""Half precision: tensors of halves, or, simulated, of floats that halves can hold."""

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


@dataclass(frozen=True)
class Float16(NumberFormat):
    """IEEE 754 half precision (binary16): 11 bits from 6.1e-5 to 65504, multiples of 6.0e-8 (2^-24) below.

    Values are rounded to nearest, ties to even. Those from 65520 on become infinities, which makes the step fail; those
    up to 3.0e-8 become 0, which nothing detects. Needs no range.
    """

    bits = 16

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

    def decode(self, encoded) -> np.ndarray:
        return np.asarray(encoded).astype(np.float32)

    def emit_encode(self, e: Emitter, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
        count, rest, groups = rows.split(e, x, statistics.parts.rows if statistics else 0)
        source = (x.update,) if y is x else (x.read, y.write)
        e.launch(
            "half.cl", "round_halves", (rows.items(e, groups),), *source, *rows.statistics_arguments(x, statistics),
            count, rest, group=rows.group_size(e), whole=True, vector_width=e.traits.vector,
            statistics=statistics is not None, in_place=y is x, written=StoredType.of(y.dtype),
        )  # fmt: skip

    def emit_encode_weights(
        self, e: Emitter, view: KernelView, y: Tensor, statistics: RangeStatistics | None = None
    ) -> None:
        e.job(
            "half.cl", "weight_halves", weight_parts(e, y), *view.read, y.write,
            *([statistics.parts.write] if statistics else []),
            numbers=(*kernel_numbers(e, view, y), prod(y.shape)), whole=True, statistics=statistics is not None,
            written=StoredType.of(y.dtype), **view.macros,
        )  # fmt: skip

    def emit_decode(self, e: Emitter, x: Tensor, y: Tensor) -> None:
        emit_to_floats(e, x, Target(y))
