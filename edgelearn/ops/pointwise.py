"""Matrix products over blocked matrices, for pointwise convolutions and dense layers: y = x w."""

from __future__ import annotations

from . import tiles
from .emit import Emitter, Epilogue, GradientTarget
from .reduce import emit_sum_partials, partial_sums
from .tensor import Tensor, ceil_div

CACHED_BYTES = 768 << 10  # of activations that a chunk of rows of the weight gradient reads again and again


def emit_forward(e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
    rows, panels = tiles.product_rows(e.traits, x.rows), tiles.panels(e.traits, y.blocks)
    e.launch(
        "pointwise.cl", "pointwise_forward", (ceil_div(x.rows, rows), y.blocks // panels),
        x.read, kernel.read, y.write, x.rows, x.channels, *epilogue.arguments,
        group=tiles.group_size(e.traits), rows=rows, panels=panels, depth=1, **epilogue.macros,
    )  # fmt: skip


def emit_backward_data(e: Emitter, transposed: Tensor, dy: Tensor, target: GradientTarget) -> None:
    dx = target.tensor
    rows, panels = tiles.product_rows(e.traits, dy.rows), tiles.panels(e.traits, dx.blocks)
    e.launch(
        "pointwise.cl", "pointwise_backward_data", (ceil_div(dy.rows, rows), dx.blocks // panels),
        dy.read, transposed.read, dy.rows, dy.channels, *target.arguments,
        group=tiles.group_size(e.traits), rows=rows, panels=panels, depth=1, **target.macros,
    )  # fmt: skip


def emit_backward_weights(e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, add: bool) -> None:
    """Small weights: groups of rows side by side, then their sum. Large ones keep the device busy by themselves: rows
    go in chunks that stay in the cache, one after the other."""
    depth, panels, group = tiles.product_depth(e.traits), tiles.panels(e.traits, dy.blocks), tiles.group_size(e.traits)
    items = (ceil_div(x.channels, depth), dy.blocks // panels)
    macros = {"group": group, "depth": depth, "panels": panels, "rows": 1}

    def launch(out: Tensor, groups: int, first: int, count: int, add: bool) -> None:
        e.launch(
            "pointwise.cl", "pointwise_backward_weights", (*items, groups), x.read, dy.read,
            out.update if add else out.write, x.rows, x.channels, dy.blocks, first, count, int(add), **macros,
        )  # fmt: skip

    groups, count = e.split_rows(x.rows, items[0] * items[1])
    if groups > 1:
        partials = partial_sums(e, groups, gradient)
        launch(partials, groups, 0, count, False)
        emit_sum_partials(e, partials, gradient, groups, add)
        return
    count = max(256, CACHED_BYTES // (4 * x.blocks * x.block))
    for first in range(0, x.rows, count):
        rows = min(count, x.rows - first)
        launch(gradient, 1, first, rows, add or first > 0)
