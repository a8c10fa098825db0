"""Launches that make integers of floats, floats of integers, and sums of integers."""

from __future__ import annotations

from edgelearn.errors import PlanError

from .dropout import layer_code
from .emit import Emitter
from .quantise import Findings
from .ranged import Ranged, RangedTarget, Result
from .sums import LONGEST_SUM, Sum, start_sum
from .tensor import Tensor, ceil_div

WEIGHT_ROWS = 256  # of a block of channels a work-item of a CPU rounds


def emit_to_integers(e: Emitter, x: Tensor, y: Ranged, found: Findings | None = None, passed: int = 0) -> None:
    """y = x by the range that y's record has by then. Of a network's input with blocks of fewer than 16 channels
    nothing is found, and it is rounded to the nearest."""
    if x.block == 16:
        result = Result(y, found, passed)
        e.launch(
            "quantised_copy.cl", "floats_to_integers", (_items(e, result, x),), x.read, *result.arguments(e),
            x.rows, x.blocks, whole=True, **result.macros(e),
        )  # fmt: skip
        return
    if found:
        raise PlanError(f"'{x.buffer.name}' has {x.channels} channels in blocks of {x.block}: its range is fixed.")
    count, bounds = x.rows * x.channels, (float(y.format.least), float(y.format.most))
    groups, _ = e.split_rows(ceil_div(count, 16), 1, least=16)
    e.launch(
        "quantised_copy.cl", "input_to_integers", (groups,), x.read, y.tensor.write, y.record.read, *bounds, count,
        whole=True,
    )  # fmt: skip


def emit_to_floats(e: Emitter, x: Ranged, target: RangedTarget) -> None:
    """What the integers stand for, through the derivative of an activation or added to another share where the target
    says so."""
    result = target.result(0, None)
    e.launch(
        "quantised_copy.cl", "integers_to_floats", (_items(e, result, x.tensor),), *x.read, *result.arguments(e),
        x.tensor.rows, x.tensor.blocks, *target.mask_arguments, whole=True, **target.macros, **result.macros(e),
    )  # fmt: skip


def emit_channel_sums(e: Emitter, x: Ranged, total: Tensor, add: bool) -> Sum:
    """As reduce.emit_channel_sums."""
    rows, blocks = x.tensor.rows, x.tensor.blocks
    groups, _ = e.split_rows(rows, blocks)
    found, count = start_sum(e, total, rows, max(groups, ceil_div(rows, LONGEST_SUM)))
    e.launch(
        "quantised_copy.cl", "integer_channel_sums", (blocks, found.groups), *x.read,
        found.target.update if add else found.target.write, rows, blocks, count, int(add),
        whole=True,
    )  # fmt: skip
    return found


def emit_weights_to_integers(e: Emitter, w: Tensor, y: Ranged) -> None:
    """A job: y = w by the range that y's record has by then, once a mini-batch."""
    count = ceil_div(w.rows * w.blocks, 2048) if e.traits.gpu else WEIGHT_ROWS
    draws = y.format.rounding == "stochastic" and e.training is not None
    e.job(
        "quantised_copy.cl", "weights_to_integers", w.blocks * ceil_div(w.rows, count), w.read, y.tensor.write,
        y.record.read, *([e.training.scalars.read] if draws else []),
        numbers=(w.rows, w.blocks, count, layer_code(y.name)),
        settings=(float(y.format.least), float(y.format.most)),
        whole=True, stochastic=draws, per_channel=y.format.per_channel,
    )  # fmt: skip


def _items(e: Emitter, result: Result, x: Tensor) -> int:
    groups, _ = e.split_rows(x.rows * x.blocks, 1)
    return result.items(e, groups)
