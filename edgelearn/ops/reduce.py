"""Sums over rows."""

from __future__ import annotations

from .emit import Emitter
from .sums import Sum, start_sum
from .tensor import Tensor, ceil_div


def emit_channel_sums(e: Emitter, x: Tensor, total: Tensor, add: bool) -> Sum:
    """Emit the sum of x over its rows; `add`: add it to that of earlier micro-batches."""
    members = e.traits.members
    items, _ = e.split_rows(x.rows, x.blocks, least=16 if e.traits.gpu else 64)
    channel_sum, count = start_sum(e, total, x.rows, ceil_div(items, members), members)
    target = channel_sum.target
    e.launch(
        "reduce.cl", "channel_sums", (channel_sum.groups * members, x.blocks), x.read,
        target.update if add else target.write, x.rows, x.blocks, count, int(add),
        **x.value_macros,
    )  # fmt: skip
    return channel_sum
