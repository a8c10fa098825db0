"""Tensors in other number formats: integers, or halves, that are stored or, simulated, floats of the values that they
can hold; conversions between them and floats, and sums of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from edgelearn.device import Traits
from edgelearn.errors import PlanError
from edgelearn.launch import Access, Role

from .constants import RangeField, RangeRule, StoredType
from .emit import LONGEST_SUM, Control, Emitter, GradientSum, layer_code, start_sum
from .formats import (
    Format,
    KernelView,
    NumberFormat,
    QuantizedTensor,
    RangeStatistics,
    Stored,
    has_range,
    reads,
    stored_macros,
    tensor_of,
)
from .observers import DSGC, Blending, CurrentMinMax, Observer, Percentile, Searching
from .target import Target
from .tensor import BLOCK, LINEAR, Function, Tensor, ceil_div

GROUP_SIZE_GPU = 256  # work-items of a GPU's work-group, which write one record of statistics
GROUPS_GPU, GROUPS_CPU = 4, 8  # work-groups a compute unit, of which each reads at least
LEAST = 1024  # floats


def split_memory(e: Emitter, x: Tensor, groups: int = 0) -> tuple[int, int, int]:
    """(rows, floats of the last row if it isn't full, work-groups), where a row is the floats that a work-item handles
    at a time; `groups` sets the number of work-groups."""
    floats, vector = x.rows * x.blocks * x.block, e.traits.vector
    if not groups:
        most = GROUPS_GPU if e.traits.gpu else GROUPS_CPU
        groups = 1 if e.traits.bare else max(1, min(most * e.traits.compute_units, ceil_div(floats, LEAST)))
    return ceil_div(floats, vector), floats % vector, groups


def record_parts(e: Emitter, x: Tensor) -> int:
    """The number of statistics records of a tensor like `x`: one for each work-group."""
    return split_memory(e, x)[2]


def group_size(e: Emitter) -> int:
    """The size of a work-group that writes a record, or merges all records."""
    return GROUP_SIZE_GPU if e.traits.gpu else e.traits.group


def group_items(e: Emitter, groups: int) -> int:
    """The number of work-items of `groups` such work-groups."""
    return groups * group_size(e)


def statistics_arguments(x: Tensor, statistics: RangeStatistics | None) -> list[Access | int]:
    """STATISTICS_ARGUMENTS in kernels/include/statistics.h, of a kernel that goes through all of `x`."""
    if statistics is None:
        return []
    parts, add = statistics.parts, statistics.add
    return [parts.update if add else parts.write, prod(x.shape), int(add)]


def quad_macros(traits: Traits) -> dict[str, Any]:
    """UNIT of kernels/include/quads.h, on a device that has one."""
    return {"unit": traits.quads} if traits.quads else {}


FIELDS = (
    "scale", "inverse", "zero", "low", "high", "least", "most", "clipped", "count", "signal", "noise", "product",
    "result", "next_low", "next_high", "updates",
)  # fmt: skip
NEXT = [RangeField.NEXT_LOW, RangeField.NEXT_HIGH]
WEIGHT_ROWS = 256  # of a block of a kernel that a work-group quantizes


def first_record(observer: Observer) -> np.ndarray:
    """The record before the first mini-batch: float32 (16,)."""
    record = np.zeros(16, np.float32)
    if observer.start is not None:
        record[NEXT] = observer.start
    return record


def moved(observer: Observer, record: np.ndarray) -> np.ndarray:
    """The record (16,) of the last mini-batch with the next range of `observer`.

    Raises PlanError unless that is two finite numbers with 0 between them.
    """
    low, high, least, most = record[RangeField.LOW : RangeField.CLIPPED]
    given = observer.next(low, high, least, most, record[RangeField.UPDATES] - 1)
    try:
        with np.errstate(over="ignore"):
            low, high = np.array(given, np.float32).reshape(2)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low <= 0 <= high):
        raise PlanError(
            f"{type(observer).__name__} gave the range {given}, which isn't (low, high), finite and with 0 between "
            f"them: correct its `next`."
        )
    after = record.copy()
    after[NEXT] = low, high
    return after


@dataclass(frozen=True)
class Quantizer:
    """Quantization of one tensor.

    Arguments:
    - `name`: of the tensor; also selects the random numbers of stochastic rounding.
    - `format`, `observer`: number format and range observer.
    - `record`: the range, (1, 16), with fields as in FIELDS.
    - `channels`: the ranges of the channels, (16, channels), for a format with a range for each.
    """

    name: str
    format: Format
    observer: Observer
    record: Tensor
    channels: Tensor | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        return float(self.format.least), float(self.format.most)

    @property
    def shape(self) -> tuple[int, int]:
        return self.format.bits, int(self.format.symmetric)


def emit_next_range(e: Emitter, q: Quantizer) -> None:
    """Emit the job that makes the next range of the last mini-batch the range in use."""
    e.job("quantize.cl", "next_range", 1, q.record.update, numbers=q.shape, whole=True)


def emit_measured_range(e: Emitter, q: Quantizer, x: Tensor, statistics: RangeStatistics | None = None) -> None:
    """Emit the launches that make the range of `x` the range in use: a pass over `x` for its statistics, unless
    `statistics` has them, and one more for a search."""
    if statistics is None:
        statistics = new_statistics(e, q, x)
        count, rest, groups = split_memory(e, x, statistics.parts.rows)
        e.launch(
            "quantize.cl", "statistics", (group_items(e, groups),), x.read, statistics.parts.write, prod(x.shape), 0,
            count, rest, group=group_size(e), whole=True, vector_width=e.traits.vector, statistics=True,
        )  # fmt: skip
    momentum = float(q.observer.momentum) if isinstance(q.observer, Blending) else 0.0
    e.launch(
        "quantize.cl", "measured_range", (group_size(e),), statistics.parts.read, q.record.update,
        statistics.parts.rows, *q.shape, momentum, group=group_size(e), whole=True,
    )  # fmt: skip
    if isinstance(q.observer, Searching):
        _emit_search(e, q, q.observer, x)


def new_statistics(e: Emitter, q: Quantizer, x: Tensor) -> RangeStatistics:
    """A new tensor for the statistics of `x` before it is quantized."""
    return RangeStatistics(e.tensor(f"{q.name} statistics", (record_parts(e, x), 16)))


def _emit_search(e: Emitter, q: Quantizer, observer: Searching, x: Tensor) -> None:
    count, rest, groups = split_memory(e, x)
    tried = e.tensor(f"{q.name} tried", (groups, 48))
    ratio = float(observer.ratio)
    e.launch(
        "quantize.cl", "try_ranges", (group_items(e, groups),), x.read, q.record.read, tried.write, count, rest,
        *q.shape, *q.bounds, ratio, group=group_size(e), whole=True, vector_width=e.traits.vector,
    )  # fmt: skip
    beyond = prod(x.shape) * (1 - observer.percent / 100) if isinstance(observer, Percentile) else 0.0
    e.launch(
        "quantize.cl", "choose_range", (group_size(e),), tried.read, q.record.update, groups, *q.shape, ratio,
        beyond, group=group_size(e), whole=True, direction=isinstance(observer, DSGC),
    )  # fmt: skip


def emit_quantize(e: Emitter, q: Quantizer, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
    """Emit y = x quantized by the range in use; `y` may be `x`. Rounding is stochastic only in training."""
    count, rest, groups = split_memory(e, x, statistics.parts.rows if statistics else 0)
    random = q.format.rounding == "stochastic" and e.training is not None
    plain = random and x.block < 16
    if plain:  # a channel gets the same random numbers as in a block of 16
        count, rest = x.rows * ceil_div(x.channels, e.traits.vector), x.channels
    source = (x.update,) if y is x else (x.read, y.write)
    more = []
    if random and e.training:
        more = [e.training.scalars.read, e.training.counters.read, x.rows, x.images, x.blocks, layer_code(q.name)]
    e.launch(
        "quantize.cl", "quantize", (group_items(e, groups),), *source, q.record.read,
        *statistics_arguments(x, statistics), count, rest, *q.bounds, *more, group=group_size(e), whole=True,
        vector_width=e.traits.vector, statistics=statistics is not None,
        traced=bool(statistics and statistics.traced), stochastic=random, plain=plain, in_place=y is x,
        written=StoredType.of(y.dtype),
    )  # fmt: skip


def emit_check_finite(e: Emitter, name: str, parts: Tensor) -> None:
    """Emit the job that sets a flag if the tensor `name`, of these statistics, held a NaN or an infinity."""
    flag = e.tensor(f"{name} flag", (1, 1), Role.CHECK)
    e.job("quantize.cl", "check_finite", e.traits.group, parts.read, flag.write, numbers=(parts.rows,), whole=True)


def emit_learn_range(e: Emitter, q: Quantizer, parts: Tensor, control: Control, rule: int) -> None:
    """Emit the job that computes the next range from the statistics of a mini-batch, unless this failed."""
    momentum = float(q.observer.momentum) if isinstance(q.observer, Blending) else 0.0
    e.job(
        "quantize.cl", "learn_range", e.traits.group, q.record.update, parts.read, control.counters.read,
        numbers=(parts.rows,), settings=(momentum,), whole=True, rule=rule,
    )  # fmt: skip


def rule_of(observer: Observer) -> int:
    """The rule for the next range of an activation or a gradient."""
    return RangeRule.RULE_BLEND if isinstance(observer, Blending) else RangeRule.RULE_KEEP


def quantized_kernel(fmt: Format, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A packed kernel's integers (blocks, rows, 16), and the record of their range, as kernels compute them.

    Arguments:
    - `values`: float32 (blocks, rows, 16).
    """
    axes = 1 if fmt.per_channel else None
    low, high = np.minimum(values.min(axes), np.float32(0)), np.maximum(values.max(axes), np.float32(0))
    scale, zero = fmt.parameters(low, high)
    fields = np.stack([scale, 1 / scale, np.float32(zero), low, high])
    shown = [each[:, None] for each in (scale, zero)] if fmt.per_channel else (scale, zero)
    record = np.zeros((len(FIELDS), *fields.shape[1:]), np.float32)
    record[: len(fields)] = fields
    by_block = np.moveaxis(record, 0, 1) if fmt.per_channel else record
    return fmt.encode(values, *shown).astype(np.int8), np.ascontiguousarray(by_block)


def weight_parts(w: Tensor) -> int:
    """The number of statistics records of a kernel."""
    return w.blocks * ceil_div(w.rows, WEIGHT_ROWS)


def kernel_numbers(view: KernelView, y: Tensor) -> tuple[int, ...]:
    """The numbers of jobs that write `y` from `view`: JOB_KERNEL in kernels/include/weights.h."""
    return y.rows, y.blocks, WEIGHT_ROWS, *view.sizes


def emit_quantized_weights(
    e: Emitter,
    q: Quantizer,
    view: KernelView,
    y: Tensor,
    statistics: RangeStatistics | None,
    control: Control | None,
    measure: Emitter | None = None,
) -> Tensor:
    """Emit the jobs for y = the kernel as `view` describes it, quantized by its own range. Rounding is stochastic only
    if `control` is given.

    Returns the extremes of its parts, two blocks each, (2 * parts, 16); the job that takes them goes to `measure`
    (default: `e`)."""
    parts, per_channel = weight_parts(y), q.channels is not None
    items = parts * e.traits.group
    extremes = e.tensor(f"{q.name} extremes", (2 * parts, 16), Role.PREPARED)
    target, size = q.channels or q.record, kernel_numbers(view, y)
    (measure or e).job(
        "quantize.cl", "weight_statistics", items, *view.read, extremes.write, numbers=size, whole=True, **view.macros,
    )  # fmt: skip
    e.job(
        "quantize.cl", "weight_range", (y.blocks if per_channel else 1) * e.traits.group, extremes.read, target.update,
        numbers=(*q.shape, y.blocks, parts // y.blocks), whole=True, per_channel=per_channel,
    )  # fmt: skip
    random = q.format.rounding == "stochastic" and control is not None
    more = ([statistics.parts.write] if statistics else []) + ([control.scalars.read] if random and control else [])
    e.job(
        "quantize.cl", "weight_quantize", items, *view.read, y.write, target.read, *more,
        numbers=(*size, prod(y.shape), layer_code(q.name)), settings=q.bounds, whole=True,
        statistics=statistics is not None, traced=bool(statistics and statistics.traced), stochastic=random,
        per_channel=per_channel, written=StoredType.of(y.dtype), **view.macros,
    )  # fmt: skip
    return extremes


@dataclass(frozen=True)
class Residual:
    """The sum of a convolution's result and another tensor, and an activation of it. Bits are those of launches that
    store each of these tensors.

    Arguments:
    - `own`: the range that rounds the convolution's result, in use already.
    - `other`: the integers that are added, of the same shape.
    - `sum`: the range that rounds the sum before its activation (default None: there is no activation).
    - `activation`: that activation.
    """

    own: Quantizer
    other: QuantizedTensor
    sum: Quantizer | None = None
    activation: Function = LINEAR

    @property
    def arguments(self) -> list[Access | float]:
        """RESIDUAL_ARGUMENTS."""
        of_sum = [self.sum.record.read, *self.sum.bounds] if self.sum else []
        return [self.own.record.read, *self.own.bounds, *self.other.read, *of_sum]

    @property
    def macros(self) -> dict[str, Any]:
        return {"residual": 2, **self.activation.macros("sum_activation")} if self.sum else {"residual": 1}


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


def emit_padded_integers(e: Emitter, x: QuantizedTensor) -> QuantizedTensor:
    """Emit and return the integers of an input of fewer than 16 channels in a block of 16."""
    y = e.tensor("padded integers", x.shape, dtype="int8")
    e.launch(
        "quantized_copy.cl", "pad_integers", (y.rows,), *x.read, y.write, y.rows, y.channels, whole=True,
    )  # fmt: skip
    return replace(x, tensor=y)


def emit_integer_sum(e: Emitter, inputs: Sequence[QuantizedTensor], target: Target, activation: Function) -> None:
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


def emit_transposed_integers(e: Emitter, kernel: QuantizedTensor, taps: int) -> QuantizedTensor:
    """Emit the job that transposes a kernel, as transpose.emit_transposed."""
    inputs, outputs = kernel.tensor.rows // taps, kernel.tensor.channels
    y = e.tensor("integer kernel transposed", (taps, outputs, inputs), Role.PREPARED, dtype="int8")
    blocks = kernel.tensor.blocks
    span = 1 if e.traits.gpu else blocks  # CPUs write in the order of memory, GPUs need many work-items
    e.job(
        "quantized_copy.cl", "transpose_integers", y.blocks * taps * ceil_div(blocks, span), kernel.tensor.read,
        y.write, numbers=(taps, inputs, outputs, span), whole=True, **quad_macros(e.traits),
    )  # fmt: skip
    return replace(kernel, tensor=y)


def emit_integer_channel_sums(e: Emitter, x: QuantizedTensor, total: Tensor, add: bool) -> GradientSum:
    """As emit.emit_channel_sums."""
    rows, blocks = x.tensor.rows, x.tensor.blocks
    groups, _ = e.split_rows(rows, blocks)
    total_sum, count = start_sum(e, total, rows, max(groups, ceil_div(rows, LONGEST_SUM)))
    e.launch(
        "quantized_copy.cl", "integer_channel_sums", (blocks, total_sum.groups), *x.read,
        total_sum.access(add), rows, blocks, count, int(add),
        whole=True,
    )  # fmt: skip
    return total_sum


class Halves(NumberFormat):
    """Base of the formats of 16 bits."""

    bits = 16

    def decode(self, encoded) -> np.ndarray:
        return np.asarray(encoded).astype(np.float32)

    def emit_encode(self, e: Emitter, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
        count, rest, groups = split_memory(e, x, statistics.parts.rows if statistics else 0)
        source = (x.update,) if y is x else (x.read, y.write)
        e.launch(
            "half.cl", "round_halves", (group_items(e, groups),), *source, *statistics_arguments(x, statistics),
            count, rest, group=group_size(e), whole=True, vector_width=e.traits.vector,
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
