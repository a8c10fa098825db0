"""Sums over rows."""

from __future__ import annotations

from .emit import Emitter
from .sums import Sum, start_sum
from .tensor import Tensor


def emit_channel_sums(e: Emitter, x: Tensor, total: Tensor, add: bool) -> Sum:
    """The sum of x over its rows, added to what the mini-batch has so far."""
    groups, _ = e.split_rows(x.rows, x.blocks)
    found, count = start_sum(e, total, x.rows, groups)
    target = found.target
    e.launch(
        "reduce.cl", "channel_sums", (x.blocks, found.groups), x.read, target.update if add else target.write,
        x.rows, x.blocks, count, int(add),
    )  # fmt: skip
    return found
