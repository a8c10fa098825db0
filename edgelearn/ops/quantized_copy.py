"""Launches that make integers of floats and floats of integers, transpose integers, and add them up."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.launch import Role

from . import stored
from .emit import Emitter
from .estimators import CurrentMinMax
from .quantize import Findings, Quantizer, emit_quantize
from .ranged import Ranged, RangedTarget, Result
from .stored import Stored
from .sums import LONGEST_SUM, Sum, start_sum
from .tensor import Tensor, ceil_div


def emit_to_integers(e: Emitter, x: Tensor, y: Ranged, found: Findings | None = None) -> None:
    """y = x by the range that y's record has by then. Stochastic rounding is for training."""
    emit_quantize(e, Quantizer(y.name, y.format, CurrentMinMax(), y.record), x, y.tensor, found)


def emit_to_floats(e: Emitter, x: Stored, target: RangedTarget) -> None:
    """What integers or halves stand for, through the derivative of an activation or added to another share where the
    target says so."""
    result, tensor = target.result(None), stored.tensor_of(x)
    e.launch(
        "quantized_copy.cl", "to_floats", (_items(e, result, tensor),), *stored.reads(x), *result.arguments(e),
        tensor.rows, tensor.blocks, *target.mask_arguments, whole=True, **stored.macros(x), **target.macros,
        **result.macros(e),
    )  # fmt: skip


def emit_transposed(e: Emitter, kernel: Ranged, taps: int) -> Ranged:
    """A job: as transpose.emit_transposed. The range is the same."""
    inputs, outputs = kernel.tensor.rows // taps, kernel.tensor.channels
    y = e.tensor("integer kernel transposed", (taps, outputs, inputs), Role.PREPARED, dtype="int8")
    e.job(
        "quantized_copy.cl", "transpose_integers", y.blocks * taps * outputs, kernel.tensor.read, y.write,
        numbers=(taps, inputs, outputs), whole=True,
    )  # fmt: skip
    return replace(kernel, tensor=y)


def emit_channel_sums(e: Emitter, x: Ranged, total: Tensor, add: bool) -> Sum:
    """As reduce.emit_channel_sums."""
    rows, blocks = x.tensor.rows, x.tensor.blocks
    groups, _ = e.split_rows(rows, blocks)
    found, count = start_sum(e, total, rows, max(groups, ceil_div(rows, LONGEST_SUM)))
    e.launch(
        "quantized_copy.cl", "integer_channel_sums", (blocks, found.groups), *x.read,
        found.target.update if add else found.target.write, rows, blocks, count, int(add),
        whole=True,
    )  # fmt: skip
    return found


def _items(e: Emitter, result: Result, x: Tensor) -> int:
    groups, _ = e.split_rows(x.rows * x.blocks, 1)
    return result.items(e, groups)
