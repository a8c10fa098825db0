"""Conversions between integers and floats; sums and activations of integers; transposition and sums of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgelearn.launch import Role

from . import quads
from .emit import Emitter
from .formats import has_range
from .function import Function
from .observers import CurrentMinMax
from .quantize import Quantizer, emit_quantize
from .quantized_tensor import QuantizedTensor, Stored, reads, stored_macros, tensor_of
from .range_statistics import RangeStatistics
from .rows import group_size
from .sums import LONGEST_SUM, Sum, start_sum
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div

MOST_ITEMS = 1 << 19  # of a GPU: each decodes a few vectors


def emit_to_integers(e: Emitter, x: Tensor, y: QuantizedTensor, statistics: RangeStatistics | None = None) -> None:
    """Emit y = x, quantized by the range in y's record. Rounding is stochastic only in training."""
    assert has_range(y.format) and y.record
    emit_quantize(e, Quantizer(y.name, y.format, CurrentMinMax(), y.record), x, y.tensor, statistics)


def emit_to_floats(e: Emitter, x: Stored, target: Target) -> None:
    """Emit target = the floats that integers or halves stand for."""
    tensor, group = tensor_of(x), group_size(e)
    e.launch(
        "quantized_copy.cl", "to_floats", (target.items(e, _items(e, tensor), group),), *reads(x),
        *target.result_arguments(e), tensor.rows, tensor.blocks, *target.mask_arguments, group=group, whole=True,
        vector_width=e.traits.vector, **stored_macros(x), **target.mask_macros, **target.result_macros(e),
    )  # fmt: skip


def _items(e: Emitter, x: Tensor) -> int:
    """Work-items that go through `x`."""
    rows = x.rows * x.blocks
    return min(rows * (BLOCK // e.traits.vector), MOST_ITEMS) if e.traits.gpu else e.split_rows(rows, 1)[0]


def emit_padded(e: Emitter, x: QuantizedTensor) -> QuantizedTensor:
    """Emit and return the integers of an input of fewer than 16 channels in a block of 16."""
    y = e.tensor("padded integers", x.shape, dtype="int8")
    e.launch(
        "quantized_copy.cl", "pad_integers", (y.rows,), *x.read, y.write, y.rows, y.channels, whole=True,
    )  # fmt: skip
    return replace(x, tensor=y)


def emit_forward(e: Emitter, inputs: Sequence[QuantizedTensor], target: Target, activation: Function) -> None:
    """Emit target = activation(the sum of one or two tensors of integers)."""
    tensor, group = inputs[0].tensor, group_size(e)
    accesses = [access for x in inputs for access in x.read]
    e.launch(
        "quantized_copy.cl", "stored_forward", (target.items(e, _items(e, tensor), group),), *accesses,
        *target.result_arguments(e), tensor.rows, tensor.blocks, group=group, whole=True, vector_width=e.traits.vector,
        added=len(inputs) == 2, **stored_macros(inputs[0]), **activation.macros(), **target.result_macros(e),
    )  # fmt: skip


def emit_decode(e: Emitter, x: QuantizedTensor, y: Tensor) -> None:
    """Emit y = the floats that `x` stands for, in any number format."""
    if x.format.needs_range:
        emit_to_floats(e, x, Target(y))
    else:
        x.format.emit_decode(e, x.tensor, y)


def emit_transposed(e: Emitter, kernel: QuantizedTensor, taps: int) -> QuantizedTensor:
    """Emit the job that transposes a kernel, as transpose.emit_transposed."""
    inputs, outputs = kernel.tensor.rows // taps, kernel.tensor.channels
    y = e.tensor("integer kernel transposed", (taps, outputs, inputs), Role.PREPARED, dtype="int8")
    blocks = kernel.tensor.blocks
    span = 1 if e.traits.gpu else blocks  # CPUs write in the order of memory, GPUs need many work-items
    e.job(
        "quantized_copy.cl", "transpose_integers", y.blocks * taps * ceil_div(blocks, span), kernel.tensor.read,
        y.write, numbers=(taps, inputs, outputs, span), whole=True, **quads.macros(e.traits),
    )  # fmt: skip
    return replace(kernel, tensor=y)


def emit_channel_sums(e: Emitter, x: QuantizedTensor, total: Tensor, add: bool) -> Sum:
    """As reduce.emit_channel_sums."""
    rows, blocks = x.tensor.rows, x.tensor.blocks
    groups, _ = e.split_rows(rows, blocks)
    total_sum, count = start_sum(e, total, rows, max(groups, ceil_div(rows, LONGEST_SUM)))
    e.launch(
        "quantized_copy.cl", "integer_channel_sums", (blocks, total_sum.groups), *x.read,
        total_sum.target.update if add else total_sum.target.write, rows, blocks, count, int(add),
        whole=True,
    )  # fmt: skip
    return total_sum
