"""Matrix products whose work-groups share tiles in local memory, for GPUs: see kernels/pointwise_local.cl."""

from __future__ import annotations

from edgelearn.launch import Choice

from .emit import Emitter, Epilogue, GradientTarget, Traits
from .sums import LONGEST_SUM, Sum, start_sum
from .tensor import Tensor, ceil_div

# Rows and channels of a work-group's tile and of a work-item's, and the teams of work-items that share the depth:
# large tiles read least, small ones and many teams keep a device busy with small problems. All fit 32 KiB of local
# memory, the least that OpenCL's full profile asks for, and work-groups of 256.
NAMES = ("rows", "columns", "item_rows", "item_columns", "slices")
SHAPES = (
    (256, 128, 16, 8, 1), (128, 128, 8, 8, 1), (64, 128, 8, 8, 1), (128, 64, 8, 8, 1), (64, 64, 8, 4, 1),
    (32, 64, 4, 4, 2), (32, 32, 4, 4, 2), (16, 32, 4, 4, 4), (16, 32, 4, 4, 8), (16, 16, 4, 4, 8), (8, 16, 2, 4, 8),
    (1, 16, 1, 4, 16),
)  # fmt: skip
TILES = [dict(zip(NAMES, shape, strict=True)) for shape in SHAPES]
WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
WEIGHT_TILES = [tile | {"waves": waves} for waves in WAVES for tile in (TILES[0], *TILES[2:8])]
BUSY = 256  # work-items that keep a compute unit busy


def tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[Choice]:
    """Candidates for a product of `rows` x `channels`, best guess first."""
    return sorted(TILES, key=lambda tile: _cost(traits, tile, rows, depth, channels))


def weight_tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[Choice]:
    """Candidates for a gradient of `rows` x `channels`, summed over `depth` rows of activations."""

    def cost(tile: Choice) -> float:
        split = _split(traits, tile, rows, depth, channels)
        adding_up = 1 + tile["waves"] / 20  # partial sums take a while in the end
        return _cost(traits, tile, rows, ceil_div(depth, split), channels, split) * adding_up

    return sorted(WEIGHT_TILES, key=cost)


def _cost(traits: Traits, tile: Choice, rows: int, depth: int, channels: int, split: int = 1) -> float:
    """What the busiest compute unit has to do: the multiply-adds of its tiles, dearer where small tiles read more for
    each, and where few work-items leave it waiting. On an H200 the cheapest tile is on average 4 % slower than the
    fastest one, over the layers of MobileNet at batches 1 and 32."""
    rounds = ceil_div(_groups(tile, rows, channels) * split, traits.compute_units)
    busy = min(1.0, rounds * _group(tile) / BUSY)
    return rounds * tile["rows"] * tile["columns"] * depth * (1 + 24 / tile["rows"] + 24 / tile["columns"]) / busy


def _groups(tile: Choice, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def _group(tile: Choice) -> int:
    """Work-items of a work-group."""
    return tile["rows"] // tile["item_rows"] * (tile["columns"] // tile["item_columns"]) * tile["slices"]


def _split(traits: Traits, tile: Choice, rows: int, depth: int, channels: int) -> int:
    """Groups that a sum over `depth` rows is split between: as long as they leave each a few blocks, and where it would
    become too long."""
    wanted = tile["waves"] * traits.compute_units // _groups(tile, rows, channels)
    return max(1, min(wanted, depth // (64 * tile["slices"])), ceil_div(depth, LONGEST_SUM))


def emit_forward(
    e: Emitter, tile: Choice, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue, flops: int
) -> None:
    _launch(
        e, "forward", tile, (x.rows, y.channels), x.read, kernel.read, y.write, x.rows, x.channels, y.channels,
        *epilogue.arguments, flops=flops, **epilogue.macros,
    )  # fmt: skip


def emit_backward_data(
    e: Emitter, tile: Choice, transposed: Tensor, dy: Tensor, target: GradientTarget, flops: int
) -> None:
    channels = target.tensor.channels
    _launch(
        e, "backward_data", tile, (dy.rows, channels), dy.read, transposed.read, dy.rows, dy.channels, channels,
        *target.arguments, flops=flops, **target.macros,
    )  # fmt: skip


def emit_backward_weights(
    e: Emitter, tile: Choice, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool, flops: int
) -> tuple[Sum, Sum | None]:
    groups = _split(e.traits, tile, x.channels, x.rows, dy.channels)
    kernel_sum, count = start_sum(e, gradient, x.rows, groups)
    dy_sum = start_sum(e, sums, x.rows, groups)[0] if sums else None
    targets = [s.target.update if add else s.target.write for s in (kernel_sum, dy_sum) if s]
    _launch(
        e, "backward_weights", tile, (x.channels, dy.channels, kernel_sum.groups), x.read, dy.read, *targets, x.rows,
        x.channels, dy.channels, count, int(add), flops=flops, sums=sums is not None,
    )  # fmt: skip
    return kernel_sum, dy_sum


def _launch(e: Emitter, name: str, tile: Choice, size: tuple[int, ...], *arguments, flops: int, **macros: int) -> None:
    group, sizes = _group(tile), {name: tile[name] for name in NAMES if name != "slices"}
    grid = (ceil_div(size[0], tile["rows"]) * group, ceil_div(size[1], tile["columns"]), *size[2:])
    e.launch(
        "pointwise_local.cl", f"pointwise_local_{name}", grid, *arguments, whole=True, group=group, flops=flops,
        **sizes, **macros,
    )  # fmt: skip
