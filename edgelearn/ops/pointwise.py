"""Matrix products over blocked matrices, for pointwise convolutions and dense layers: y = x w."""

from __future__ import annotations

from edgelearn.tuned.store import KernelConfig, Traits

from . import convolution_local, convolution_units, tiles
from .emit import Emitter, Epilogue, Sum, start_sum
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window

CACHED_BYTES = 512 << 10  # of activations, a chunk of rows that the tiles read repeatedly

FEW_ROWS = 4  # up to here the gradient of the input is summed within vectors, without a transposed kernel


def emit_forward(e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
    if e.compute.uses_units:
        convolution_units.emit_forward(e, _window(x), x, kernel, y, epilogue, _flops(x, y))
        return
    shape = x.rows, x.channels, y.channels
    with e.choose("pointwise_forward", shape, _tiles(e.traits, *shape)) as tile:
        if "slices" in tile:
            convolution_local.emit_forward(e, tile, _window(x), x, kernel, y, epilogue, _flops(x, y))
            return
        e.launch(
            "pointwise.cl", "pointwise_forward", _grid(e.traits, x, y, tile),
            x.read, kernel.read, y.write, x.rows, x.channels, *epilogue.arguments,
            flops=_flops(x, y), depth=1, **tile, **epilogue.macros, **y.value_macros, **e.compute.macros,
        )  # fmt: skip


def emit_backward_data(e: Emitter, transposed: Tensor, dy: Tensor, target: Target) -> None:
    dx = target.tensor
    if e.compute.uses_units:
        convolution_units.emit_backward_data(e, _window(dy), transposed, dy, target, _flops(dx, dy))
        return
    shape = dy.rows, dy.channels, dx.channels
    with e.choose("pointwise_backward_data", shape, _tiles(e.traits, *shape)) as tile:
        if "slices" in tile:
            convolution_local.emit_backward_data(e, tile, _window(dy), transposed, dy, target, _flops(dx, dy))
            return
        e.launch(
            "pointwise.cl", "pointwise_backward_data", _grid(e.traits, dy, dx, tile),
            dy.read, transposed.read, dy.rows, dy.channels, *target.arguments,
            flops=_flops(dx, dy), depth=1, **tile, **target.macros, **e.compute.macros,
        )  # fmt: skip


def has_few_rows(e: Emitter, x: Tensor) -> bool:
    return not e.traits.gpu and x.rows <= FEW_ROWS


def emit_few_rows_backward_data(e: Emitter, kernel: Tensor, dy: Tensor, target: Target) -> None:
    """As `emit_backward_data`, from the kernel that is not transposed."""
    dx = target.tensor
    e.launch(
        "pointwise.cl", "few_rows_backward_data", (dx.blocks,), dy.read, kernel.read, dy.rows, dx.channels, dy.blocks,
        *target.arguments, flops=_flops(dx, dy), whole=True, **target.macros, **e.compute.macros,
    )  # fmt: skip


def emit_backward_weights(
    e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
) -> tuple[Sum, Sum | None]:
    """Emit the gradient of the kernel. For small kernels, groups of rows are summed in parallel. Large kernels keep the
    device busy by themselves: chunks of rows that fit the cache follow one another."""
    if e.compute.uses_units:
        return convolution_units.emit_backward_weights(e, _window(x), x, dy, gradient, sums, add, _flops(x, dy))
    shape = x.rows, x.channels, dy.channels
    with e.choose("pointwise_backward_weights", shape, _depths(e.traits, *shape)) as tile:
        if "slices" in tile:
            return convolution_local.emit_backward_weights(
                e, tile, _window(x), x, dy, gradient, sums, add, _flops(x, dy)
            )
        items = (ceil_div(x.channels, tile["depth"]), dy.blocks // tile["panels"])
        groups, _ = e.split_rows(x.rows, items[0] * items[1])
        kernel_sum, count = start_sum(e, gradient, x.rows, groups)
        dy_sum = start_sum(e, sums, x.rows, groups)[0] if sums else None
        if kernel_sum.groups == 1:
            count = max(256, CACHED_BYTES // (4 * x.blocks * x.block))
        for first in range(0, x.rows, kernel_sum.groups * count):
            more = add or first > 0
            targets = [s.target.update if more else s.target.write for s in (kernel_sum, dy_sum) if s]
            rows = min(kernel_sum.groups * count, x.rows - first)
            e.launch(
                "pointwise.cl", "pointwise_backward_weights", (*items, kernel_sum.groups),
                x.read_rows(rows), dy.read_rows(rows), *targets,
                x.rows, x.channels, dy.blocks, first, min(count, rows), int(more),
                flops=_flops(x, dy) * rows // x.rows, rows=1, sums=sums is not None, **tile, **dy.value_macros,
                **e.compute.macros,
            )  # fmt: skip
        return kernel_sum, dy_sum


def _grid(traits: Traits, x: Tensor, y: Tensor, tile: KernelConfig) -> tuple[int, int, int]:
    """(tiles of a chunk, panels, chunks)"""
    tiles = ceil_div(x.rows, tile["rows"])
    chunks = 1 if traits.gpu else min(tiles, ceil_div(4 * x.rows * x.blocks * x.block, CACHED_BYTES))
    return ceil_div(tiles, chunks), y.blocks // tile["panels"], chunks


def _window(x: Tensor) -> Window:
    """A pointwise window over all rows as one image."""
    return Window.pointwise(1, x.rows)


def _flops(x: Tensor, y: Tensor) -> int:
    return 2 * x.rows * x.channels * y.channels


def _tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[KernelConfig]:
    """Tiles of `rows` x `channels` outputs, best guess first."""
    blocks = ceil_div(channels, BLOCK)
    best = {"rows": tiles.product_rows(traits, rows), "panels": tiles.panels(traits, blocks)}
    if traits.gpu:
        return [*convolution_local.tiles(traits, rows, depth, channels), best]
    sizes, panels = tiles.up_to(tiles.PRODUCT_ROWS, rows), tiles.dividing(tiles.PANELS, blocks)
    return tiles.worth_trying(best, rows=sizes, panels=panels)


def _depths(traits: Traits, rows: int, inputs: int, outputs: int) -> list[KernelConfig]:
    """Tiles of a gradient of `inputs` x `outputs`, summed over `rows`."""
    blocks = ceil_div(outputs, BLOCK)
    best = {"depth": tiles.product_depth(traits), "panels": tiles.panels(traits, blocks)}
    if traits.gpu:
        return [*convolution_local.weight_tiles(traits, inputs, rows, outputs), best]
    return tiles.worth_trying(best, depth=(4, 8, 16), panels=tiles.dividing(tiles.PANELS, blocks))
