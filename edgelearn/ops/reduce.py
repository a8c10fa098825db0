"""Sums over rows."""

from __future__ import annotations

from .emit import Emitter
from .sums import Sum, start_sum
from .tensor import Tensor, ceil_div


def emit_channel_sums(e: Emitter, x: Tensor, total: Tensor, add: bool) -> Sum:
    """The sum of x over its rows, added to what the mini-batch has so far."""
    members = e.traits.members
    items, _ = e.split_rows(x.rows, x.blocks, least=16 if e.traits.gpu else 64)
    found, count = start_sum(e, total, x.rows, ceil_div(items, members), members)
    target = found.target
    e.launch(
        "reduce.cl", "channel_sums", (found.groups * members, x.blocks), x.read,
        target.update if add else target.write, x.rows, x.blocks, count, int(add),
    )  # fmt: skip
    return found
