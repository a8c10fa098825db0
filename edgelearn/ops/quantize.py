"""Quantization to integers: int8 tensors, or, simulated, float32 tensors of the values that integers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Role

from . import rows
from .control import Control
from .emit import Emitter
from .formats import Format, StoredType
from .observers import DSGC, Blending, Observer, Percentile, Searching
from .philox import layer_code
from .range_statistics import RangeStatistics
from .tensor import Tensor, ceil_div
from .transpose import KernelView

FIELDS = (
    "scale", "inverse", "zero", "low", "high", "least", "most", "clipped", "count", "signal", "noise", "product",
    "result", "next_low", "next_high", "updates",
)  # fmt: skip
NEXT_LOW, NEXT_HIGH, UPDATES = range(13, 16)

BLEND, KEEP, OWN = range(3)  # rules for the next range: learn_range in kernels/quantize.cl
WEIGHT_ROWS = 256  # of a block of a kernel that a work-group quantizes


def first_record(observer: Observer) -> np.ndarray:
    """The record before the first mini-batch: float32 (16,)."""
    record = np.zeros(16, np.float32)
    if observer.start is not None:
        record[[NEXT_LOW, NEXT_HIGH]] = observer.start
    return record


def moved(observer: Observer, record: np.ndarray) -> np.ndarray:
    """The record (16,) of the last mini-batch with the next range of `observer`.

    Raises PlanError unless that is two finite numbers with 0 between them.
    """
    low, high, least, most = record[3:7]
    given = observer.next(low, high, least, most, record[UPDATES] - 1)
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
    after[[NEXT_LOW, NEXT_HIGH]] = low, high
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
        count, rest, groups = rows.split(e, x, statistics.parts.rows)
        e.launch(
            "quantize.cl", "statistics", (rows.items(e, groups),), x.read, statistics.parts.write, prod(x.shape), 0,
            count, rest, group=rows.group_size(e), whole=True, vector_width=e.traits.vector, statistics=True,
        )  # fmt: skip
    momentum = float(q.observer.momentum) if isinstance(q.observer, Blending) else 0.0
    e.launch(
        "quantize.cl", "measured_range", (rows.group_size(e),), statistics.parts.read, q.record.update,
        statistics.parts.rows, *q.shape, momentum, group=rows.group_size(e), whole=True,
    )  # fmt: skip
    if isinstance(q.observer, Searching):
        _emit_search(e, q, q.observer, x)


def new_statistics(e: Emitter, q: Quantizer, x: Tensor) -> RangeStatistics:
    """A new tensor for the statistics of `x` before it is quantized."""
    return RangeStatistics(e.tensor(f"{q.name} statistics", (rows.parts(e, x), 16)))


def _emit_search(e: Emitter, q: Quantizer, observer: Searching, x: Tensor) -> None:
    count, rest, groups = rows.split(e, x)
    tried = e.tensor(f"{q.name} tried", (groups, 48))
    ratio = float(observer.ratio)
    e.launch(
        "quantize.cl", "try_ranges", (rows.items(e, groups),), x.read, q.record.read, tried.write, count, rest,
        *q.shape, *q.bounds, ratio, group=rows.group_size(e), whole=True, vector_width=e.traits.vector,
    )  # fmt: skip
    beyond = prod(x.shape) * (1 - observer.percent / 100) if isinstance(observer, Percentile) else 0.0
    e.launch(
        "quantize.cl", "choose_range", (rows.group_size(e),), tried.read, q.record.update, groups, *q.shape, ratio,
        beyond, group=rows.group_size(e), whole=True, direction=isinstance(observer, DSGC),
    )  # fmt: skip


def emit_quantize(e: Emitter, q: Quantizer, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
    """Emit y = x quantized by the range in use; `y` may be `x`. Rounding is stochastic only in training."""
    count, rest, groups = rows.split(e, x, statistics.parts.rows if statistics else 0)
    random = q.format.rounding == "stochastic" and e.training is not None
    plain = random and x.block < 16
    if plain:  # a channel gets the same random numbers as in a block of 16
        count, rest = x.rows * ceil_div(x.channels, e.traits.vector), x.channels
    source = (x.update,) if y is x else (x.read, y.write)
    more = []
    if random and e.training:
        more = [e.training.scalars.read, e.training.counters.read, x.rows, x.images, x.blocks, layer_code(q.name)]
    e.launch(
        "quantize.cl", "quantize", (rows.items(e, groups),), *source, q.record.read,
        *rows.statistics_arguments(x, statistics), count, rest, *q.bounds, *more, group=rows.group_size(e), whole=True,
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
    return BLEND if isinstance(observer, Blending) else KEEP


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
