"""Launches that make integers of floats and floats of integers, transpose integers, and add them up."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.launch import Role

from .emit import Emitter
from .formats import has_range
from .observers import CurrentMinMax
from .quantize import Quantizer, emit_quantize
from .quantized_tensor import QuantizedTensor, Stored, reads, stored_macros, tensor_of
from .range_statistics import RangeStatistics
from .sums import LONGEST_SUM, Sum, start_sum
from .target import Target
from .tensor import Tensor, ceil_div


def emit_to_integers(e: Emitter, x: Tensor, y: QuantizedTensor, found: RangeStatistics | None = None) -> None:
    """y = x by the range that y's record has by then. Stochastic rounding is for training."""
    assert has_range(y.format) and y.record
    emit_quantize(e, Quantizer(y.name, y.format, CurrentMinMax(), y.record), x, y.tensor, found)


def emit_to_floats(e: Emitter, x: Stored, target: Target) -> None:
    """target = the floats that integers or halves stand for."""
    tensor = tensor_of(x)
    groups, _ = e.split_rows(tensor.rows * tensor.blocks, 1)
    e.launch(
        "quantized_copy.cl", "to_floats", (target.items(e, groups),), *reads(x), *target.result_arguments(e),
        tensor.rows, tensor.blocks, *target.mask_arguments, whole=True, **stored_macros(x), **target.mask_macros,
        **target.result_macros(e),
    )  # fmt: skip


def emit_decode(e: Emitter, x: QuantizedTensor, y: Tensor) -> None:
    """y = the floats that `x` stands for, in any number format."""
    if x.format.needs_range:
        emit_to_floats(e, x, Target(y))
    else:
        x.format.emit_decode(e, x.tensor, y)


def emit_transposed(e: Emitter, kernel: QuantizedTensor, taps: int) -> QuantizedTensor:
    """A job: as transpose.emit_transposed. The range is the same."""
    inputs, outputs = kernel.tensor.rows // taps, kernel.tensor.channels
    y = e.tensor("integer kernel transposed", (taps, outputs, inputs), Role.PREPARED, dtype="int8")
    e.job(
        "quantized_copy.cl", "transpose_integers", y.blocks * taps * outputs, kernel.tensor.read, y.write,
        numbers=(taps, inputs, outputs), whole=True,
    )  # fmt: skip
    return replace(kernel, tensor=y)


def emit_channel_sums(e: Emitter, x: QuantizedTensor, total: Tensor, add: bool) -> Sum:
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
