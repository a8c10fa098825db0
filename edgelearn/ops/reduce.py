"""Sums over rows and over partial results."""

from __future__ import annotations

from .emit import Emitter
from .tensor import Tensor, blocked_bytes, ceil_div

LONGEST_SUM = 1 << 15  # products one after the other: a float32 sum of a million of them is off by 2e-4


def partial_sums(e: Emitter, groups: int, total: Tensor) -> Tensor:
    """Workspace for `groups` partial results of the size of `total`."""
    return e.tensor("partial sums", (groups, total.rows, total.blocks * total.block))


def emit_sum_partials(e: Emitter, partials: Tensor, total: Tensor, groups: int, add: bool) -> None:
    """total = (add ? total : 0) + the sum of the partial results."""
    blocks = blocked_bytes(total.rows, total.channels) // 64
    chunk = 1 if e.traits.gpu else max(1, min(64, ceil_div(blocks, 8 * e.traits.compute_units)))
    target = total.update if add else total.write
    e.launch(
        "reduce.cl", "sum_partials", (ceil_div(blocks, chunk),), partials.read, target, blocks, groups, int(add),
        chunk,
    )  # fmt: skip


def emit_channel_sums(e: Emitter, x: Tensor, total: Tensor, add: bool) -> None:
    """total = (add ? total : 0) + the sum of x over its rows."""
    groups, count = e.split_rows(x.rows, x.blocks)
    partials = partial_sums(e, groups, total)
    e.launch(
        "reduce.cl", "channel_sums", (x.blocks, groups), x.read, partials.write, x.rows, x.blocks, count,
    )  # fmt: skip
    emit_sum_partials(e, partials, total, groups, add)
