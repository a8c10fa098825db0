"""Rounding to half precision: tensors of halves, or, simulated, of floats that hold nothing but what halves can."""

from __future__ import annotations

from math import prod

from . import rows
from .emit import Emitter
from .formats import Storage
from .quantize import RangeStatistics, kernel_numbers, weight_parts
from .tensor import Tensor
from .transpose import KernelView


def emit_halved(e: Emitter, x: Tensor, y: Tensor, found: RangeStatistics | None = None) -> None:
    """y = x rounded to nearest, ties to even; `y` may be `x`. What is found is of y, which may be infinite."""
    count, rest, groups = rows.split(e, x, found.parts.rows if found else 0)
    source = (x.update,) if y is x else (x.read, y.write)
    target = [found.parts.update if found.add else found.parts.write, prod(x.shape), int(found.add)] if found else []
    e.launch(
        "half.cl", "round_halves", (rows.items(e, groups),), *source, *target, count, rest,
        group=rows.finders(e), whole=True, vector_width=e.traits.vector, statistics=found is not None, in_place=y is x,
        written=Storage.of(y.dtype),
    )  # fmt: skip


def emit_halved_weights(e: Emitter, view: KernelView, y: Tensor, found: RangeStatistics | None = None) -> None:
    """A job: y = the kernel as `view` says, rounded."""
    more = [found.parts.write] if found else []
    e.job(
        "half.cl", "weight_halves", weight_parts(e, y), *view.read, y.write, *more,
        numbers=(*kernel_numbers(e, view, y), prod(y.shape)), whole=True, statistics=found is not None,
        written=Storage.of(y.dtype), **view.macros,
    )  # fmt: skip
