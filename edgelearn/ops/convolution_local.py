"""Convolutions as matrix products whose work-groups share tiles in local memory, for GPUs: see
kernels/convolution_local.cl."""

from __future__ import annotations

from edgelearn.tuned.store import KernelConfig, Traits

from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, start_sum
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window

# Rows and channels of a work-group's tile and of a work-item's, and the teams of work-items that share the depth:
# large tiles read least, small ones and many teams keep a device busy with small problems. All fit 32 KiB of local
# memory, the least that OpenCL's full profile asks for, and work-groups of 256.
NAMES = ("rows", "columns", "item_rows", "item_columns", "slices")
SHAPES = (
    (256, 128, 16, 8, 1), (128, 128, 8, 8, 1), (64, 128, 8, 8, 1), (128, 64, 8, 8, 1), (64, 64, 8, 4, 1),
    (32, 64, 4, 4, 2), (32, 32, 4, 4, 2), (16, 32, 4, 4, 4), (16, 32, 4, 4, 8), (16, 16, 4, 4, 8), (8, 16, 2, 4, 8),
    (1, 16, 1, 4, 16), (128, 32, 8, 4, 1),
)  # fmt: skip
TILES: list[KernelConfig] = [dict(zip(NAMES, shape, strict=True)) for shape in SHAPES]
WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
WEIGHT_TILES = [tile | {"waves": waves} for waves in WAVES for tile in TILES if tile["rows"] % BLOCK == 0]
REGISTERS, ITEMS = 1 << 16, 2048  # that a compute unit has, and work-items that it can hold
BUSY = 24000  # sums that keep a compute unit busy, while some of its work-groups wait for memory and for each other


def tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[KernelConfig]:
    """Candidates for a product of `rows` x `channels`, best guess first."""
    return sorted(TILES, key=lambda tile: _cost(traits, tile, rows, depth, channels))


def weight_tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[KernelConfig]:
    """Candidates for a gradient of `rows` x `channels`, summed over `depth` rows of activations."""

    def cost(tile: KernelConfig) -> float:
        split = _split(traits, tile, rows, depth, channels)
        adding_up = 1 + tile["waves"] / 80  # partial sums take a while in the end
        return _cost(traits, tile, rows, ceil_div(depth, split), channels, split) * adding_up

    return sorted(WEIGHT_TILES, key=cost)


def _cost(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int, split: int = 1) -> float:
    """Estimated work of the busiest compute unit: the multiply-adds of its tiles and the writing of their sums. Small
    tiles cost more, since they read more for each multiply-add, and so do few sums at a time, which leave it waiting.
    On an H200 the cheapest tile is on average 2 % slower than the fastest, over the layers of ResNet-18, MobileNet and
    MobileNet V2."""
    rounds = ceil_div(_groups(tile, rows, channels) * split, traits.compute_units)
    of_item, group = tile["item_rows"] * tile["item_columns"], _group(tile)
    resident = max(1, min(REGISTERS // (group * (2 * of_item + 36)), ITEMS // group))
    busy = min(1.0, min(rounds, resident) * group * of_item / BUSY) ** 0.3
    work = rounds * tile["rows"] * tile["columns"] * (depth + 20)
    return work * (1 + 18 / tile["rows"] + 8 / tile["columns"]) / busy


def _groups(tile: KernelConfig, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def _group(tile: KernelConfig) -> int:
    """Work-items of a work-group."""
    return tile["rows"] // tile["item_rows"] * (tile["columns"] // tile["item_columns"]) * tile["slices"]


def _split(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int) -> int:
    """Groups that a sum over `depth` rows is split between: as long as they leave each a few blocks, and where it would
    become too long."""
    wanted = tile["waves"] * traits.compute_units // _groups(tile, rows, channels)
    return max(1, min(wanted, depth // (64 * tile["slices"])), ceil_div(depth, LONGEST_SUM))


def emit_forward(
    e: Emitter, tile: KernelConfig, window: Window, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue, flops: int
) -> None:
    images = x.rows // (window.height * window.width)
    _launch(
        e, "forward", tile, window, (y.rows, y.channels), x.read, kernel.read, y.write, images, window.height,
        window.width, *window.output, x.channels, y.channels, *epilogue.arguments, flops=flops, **epilogue.macros,
        **y.value_macros,
    )  # fmt: skip


def emit_backward_data(
    e: Emitter, tile: KernelConfig, window: Window, transposed: Tensor, dy: Tensor, target: Target, flops: int
) -> None:
    """Emit the gradient of the input; every stride-th row and column of an image is a matrix product of its own."""
    dx, strides = target.tensor, window.strides
    images = dx.rows // (window.height * window.width)
    rows = images * ceil_div(window.height, strides[0]) * ceil_div(window.width, strides[1])
    _launch(
        e, "backward_data", tile, window, (rows, dx.channels, strides[0] * strides[1]), dy.read, transposed.read,
        images, *window.output, window.height, window.width, dy.channels, dx.channels, *target.arguments, flops=flops,
        **target.macros,
    )  # fmt: skip


def emit_backward_weights(
    e: Emitter,
    tile: KernelConfig,
    window: Window,
    x: Tensor,
    dy: Tensor,
    gradient: Tensor,
    sums: Tensor | None,
    add: bool,
    flops: int,
) -> tuple[Sum, Sum | None]:
    rows = window.taps * x.blocks * BLOCK
    groups = _split(e.traits, tile, rows, dy.rows, dy.channels)
    kernel_sum, span = start_sum(e, gradient, dy.rows, groups)
    dy_sum = start_sum(e, sums, dy.rows, groups)[0] if sums else None
    targets = [s.target.update if add else s.target.write for s in (kernel_sum, dy_sum) if s]
    images = x.rows // (window.height * window.width)
    _launch(
        e, "backward_weights", tile, window, (rows, dy.channels, kernel_sum.groups), x.read, dy.read, *targets, images,
        window.height, window.width, *window.output, x.channels, dy.channels, span, int(add), flops=flops,
        sums=sums is not None, **dy.value_macros,
    )  # fmt: skip
    return kernel_sum, dy_sum


def _launch(
    e: Emitter,
    name: str,
    tile: KernelConfig,
    window: Window,
    size: tuple[int, ...],
    *arguments,
    flops: int,
    **macros: int,
) -> None:
    group, sizes = _group(tile), {name: tile[name] for name in NAMES if name != "slices"}
    grid = (ceil_div(size[0], tile["rows"]) * group, ceil_div(size[1], tile["columns"]), *size[2:])
    e.launch(
        "convolution_local.cl", f"convolution_local_{name}", grid, *arguments, whole=True, group=group, flops=flops,
        direct=window.is_pointwise, **sizes, **window.macros, **macros, **e.compute.macros,
    )  # fmt: skip
