"""Quantization: int8 tensors, or, simulated, float32 ones that hold nothing but what integers could stand for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import Role

from . import rows
from .control import Control
from .dropout import layer_code
from .emit import Emitter
from .formats import Format, Storage
from .observers import DSGC, Blending, Observer, Percentile, Searching
from .tensor import Tensor, ceil_div
from .transpose import KernelView

FIELDS = (
    "scale", "inverse", "zero", "low", "high", "least", "most", "clipped", "count", "signal", "noise", "product",
    "result", "next_low", "next_high", "updates",
)  # fmt: skip
NEXT_LOW, NEXT_HIGH, UPDATES = range(13, 16)

BLEND, KEEP, OWN = range(3)  # how a range follows: learn_range in kernels/quantize.cl
WEIGHT_ROWS, WEIGHT_ROWS_GPU = 256, 16  # of a block of a kernel that a work-item quantizes, on a GPU at least


def first_record(observer: Observer) -> np.ndarray:
    """The record before the first mini-batch: float32 (16,)."""
    record = np.zeros(16, np.float32)
    if observer.start is not None:
        record[[NEXT_LOW, NEXT_HIGH]] = observer.start
    return record


def moved(observer: Observer, record: np.ndarray) -> np.ndarray:
    """The record (16,) of a mini-batch that kernels have just taken in, with the next range as `estimator` says.

    Raises PlanError when that isn't a range: two finite numbers with 0 between them."""
    used, found, before = record[3:5], record[5:7], record[UPDATES] - 1
    given = observer.next(*used, *found, before)
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
    """How one tensor is quantized, and where its range is: `record`, (1, 16), fields as FIELDS says. Formats with a
    range for each channel have `channels`, (16, channels), besides. `name` also says which random numbers are drawn."""

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


@dataclass(frozen=True)
class RangeStatistics:
    """Where a mini-batch leaves what it finds of a tensor: `parts`, a record a row. `traced` adds the sums for signal
    to noise and cosine; `add` says that earlier micro-batches have been there."""

    parts: Tensor
    traced: bool = False
    add: bool = False


def emit_next_range(e: Emitter, q: Quantizer) -> None:
    """A job: use the range that the last mini-batch has left."""
    e.job("quantize.cl", "next_range", 1, q.record.update, numbers=q.shape, whole=True)


def emit_measured_range(e: Emitter, q: Quantizer, x: Tensor, found: RangeStatistics | None = None) -> None:
    """Use the range of `x` itself: a pass over it for its statistics, unless whoever wrote it has `found` them, and one
    more for a search."""
    if found is None:
        found = statistics(e, q, x)
        count, rest, groups = rows.split(e, x, found.parts.rows)
        e.launch(
            "quantize.cl", "statistics", (rows.items(e, groups),), x.read, found.parts.write, prod(x.shape), 0, count,
            rest, group=rows.finders(e), whole=True, vector_width=e.traits.vector, statistics=True,
        )  # fmt: skip
    momentum = float(q.observer.momentum) if isinstance(q.observer, Blending) else 0.0
    e.launch(
        "quantize.cl", "measured_range", (rows.finders(e),), found.parts.read, q.record.update, found.parts.rows,
        *q.shape, momentum, group=rows.finders(e), whole=True,
    )  # fmt: skip
    if isinstance(q.observer, Searching):
        _emit_search(e, q, x)


def statistics(e: Emitter, q: Quantizer, x: Tensor) -> RangeStatistics:
    """A place for what is found of `x` before it is quantized."""
    return RangeStatistics(e.tensor(f"{q.name} statistics", (rows.parts(e, x), 16)))


def _emit_search(e: Emitter, q: Quantizer, x: Tensor) -> None:
    count, rest, groups = rows.split(e, x)
    tried = e.tensor(f"{q.name} tried", (groups, 48))
    ratio = float(q.observer.ratio)
    e.launch(
        "quantize.cl", "try_ranges", (rows.items(e, groups),), x.read, q.record.read, tried.write, count, rest,
        *q.shape, *q.bounds, ratio, group=rows.finders(e), whole=True, vector_width=e.traits.vector,
    )  # fmt: skip
    beyond = prod(x.shape) * (1 - q.observer.percent / 100) if isinstance(q.observer, Percentile) else 0.0
    e.launch(
        "quantize.cl", "choose_range", (rows.finders(e),), tried.read, q.record.update, groups, *q.shape, ratio, beyond,
        group=rows.finders(e), whole=True, direction=isinstance(q.observer, DSGC),
    )  # fmt: skip


def emit_quantize(e: Emitter, q: Quantizer, x: Tensor, y: Tensor, found: RangeStatistics | None = None) -> None:
    """y = x quantized with the range in use; `y` may be `x`. Stochastic rounding is for training alone."""
    count, rest, groups = rows.split(e, x, found.parts.rows if found else 0)
    random = q.format.rounding == "stochastic" and e.training is not None
    plain = random and x.block < 16
    if plain:  # a channel draws the same numbers as in a block of 16
        count, rest = x.rows * ceil_div(x.channels, e.traits.vector), x.channels
    source = (x.update,) if y is x else (x.read, y.write)
    target, more = [], []
    if found:
        target = [found.parts.update if found.add else found.parts.write, prod(x.shape), int(found.add)]
    if random:
        control: Control = e.training
        more = [control.scalars.read, control.counters.read, x.rows, x.images, x.blocks, layer_code(q.name)]
    e.launch(
        "quantize.cl", "quantize", (rows.items(e, groups),), *source, q.record.read, *target, count, rest, *q.bounds,
        *more, group=rows.finders(e), whole=True, vector_width=e.traits.vector, statistics=found is not None,
        traced=bool(found and found.traced), stochastic=random, plain=plain, in_place=y is x,
        written=Storage.of(y.dtype),
    )  # fmt: skip


def emit_check_found(e: Emitter, name: str, found: Tensor) -> None:
    """A job: a flag where the tensor of that name held a NaN or an infinity."""
    flag = e.tensor(f"{name} flag", (1, 1), Role.CHECK)
    e.job("quantize.cl", "check_finite", e.traits.group, found.read, flag.write, numbers=(found.rows,), whole=True)


def emit_learn_range(e: Emitter, q: Quantizer, found: Tensor, control: Control, rule: int) -> None:
    """A job: take in what the mini-batch found, unless it found a NaN or an infinity."""
    momentum = float(q.observer.momentum) if rule == BLEND else 0.0
    e.job(
        "quantize.cl", "learn_range", e.traits.group, q.record.update, found.read, control.counters.read,
        numbers=(found.rows,), settings=(momentum,), whole=True, rule=rule,
    )  # fmt: skip


def rule_of(observer: Observer) -> int:
    """How the next range of an activation or a gradient follows."""
    return BLEND if isinstance(observer, Blending) else KEEP


def weight_parts(e: Emitter, w: Tensor) -> int:
    """Records that rounding weights leaves."""
    return w.blocks * ceil_div(w.rows, _weight_rows(e, w))


def kernel_numbers(e: Emitter, view: KernelView, y: Tensor) -> tuple[int, ...]:
    """What jobs that make `y` as `view` says know of it: KERNEL_ROWS in kernels/include/weights.h."""
    return y.rows, y.blocks, _weight_rows(e, y), *view.sizes


def emit_quantized_weights(
    e: Emitter, q: Quantizer, view: KernelView, y: Tensor, found: RangeStatistics | None, control: Control | None
) -> None:
    """Jobs: y = the kernel as `view` says, quantized with its own range; stochastic rounding where there is
    `control`."""
    items, per_channel = weight_parts(e, y), q.channels is not None
    extremes = e.tensor(f"{q.name} extremes", (2 * items, 16), Role.PREPARED)
    target, size = q.channels or q.record, kernel_numbers(e, view, y)
    e.job(
        "quantize.cl", "weight_statistics", items, *view.read, extremes.write, numbers=size, whole=True, **view.macros,
    )  # fmt: skip
    e.job(
        "quantize.cl", "weight_range", (y.blocks if per_channel else 1) * e.traits.group, extremes.read, target.update,
        numbers=(*q.shape, y.blocks, items // y.blocks), whole=True, per_channel=per_channel,
    )  # fmt: skip
    random = q.format.rounding == "stochastic" and control is not None
    more = ([found.parts.write] if found else []) + ([control.scalars.read] if random else [])
    e.job(
        "quantize.cl", "weight_quantize", items, *view.read, y.write, target.read, *more,
        numbers=(*size, prod(y.shape), layer_code(q.name)), settings=q.bounds, whole=True, statistics=found is not None,
        traced=bool(found and found.traced), stochastic=random, per_channel=per_channel,
        written=Storage.of(y.dtype), **view.macros,
    )  # fmt: skip


def _weight_rows(e: Emitter, w: Tensor) -> int:
    """Of a block of a kernel, that a work-item handles: many of them would leave as many records."""
    return max(WEIGHT_ROWS_GPU, ceil_div(w.rows * w.blocks, 2048)) if e.traits.gpu else WEIGHT_ROWS
