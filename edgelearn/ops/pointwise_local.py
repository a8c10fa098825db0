"""Matrix products whose work-groups share tiles in local memory, for GPUs: see kernels/pointwise_local.cl."""

from __future__ import annotations

from edgelearn.launch import Choice

from .emit import Emitter, Epilogue, GradientTarget, Traits
from .sums import LONGEST_SUM, Sum, start_sum
from .tensor import Tensor, ceil_div

# Rows and channels of a work-group's tile and of a work-item's, and the teams of work-items that share the depth:
# large tiles read least, small ones and many teams keep a device busy with small problems.
SHAPES = (
    (128, 128, 8, 8, 1), (128, 64, 8, 8, 1), (64, 128, 8, 8, 1), (64, 64, 8, 4, 1), (64, 64, 4, 4, 1),
    (64, 64, 8, 4, 2), (64, 32, 4, 4, 2), (32, 64, 4, 4, 2), (32, 32, 4, 4, 4), (32, 32, 4, 4, 2), (16, 32, 4, 4, 4),
    (16, 32, 4, 4, 8), (16, 16, 4, 4, 8), (8, 16, 2, 4, 8), (1, 16, 1, 4, 32), (1, 16, 1, 4, 8),
)  # fmt: skip
NAMES = ("rows", "columns", "item_rows", "item_columns", "slices")
TILES = [dict(zip(NAMES, shape, strict=True)) for shape in SHAPES]
WAVES = (1, 2, 4, 8)  # work-groups a compute unit that a weight gradient is split into


def tiles(traits: Traits, rows: int, channels: int) -> list[Choice]:
    """Candidates for a product of `rows` x `channels`, best guess first; none where local memory is no faster."""
    if not traits.gpu:
        return []
    best = _best(traits, TILES, rows, channels)
    return [best, *(tile for tile in TILES if tile != best)]


def weight_tiles(traits: Traits, rows: int, channels: int) -> list[Choice]:
    """Candidates for a gradient of `rows` x `channels`."""
    if not traits.gpu:
        return []
    fitting = [tile for tile in TILES if tile["rows"] % 16 == 0]
    best = _best(traits, fitting, rows, channels) | {"waves": WAVES[1]}
    every = [tile | {"waves": waves} for tile in fitting for waves in WAVES]
    return [best, *(tile for tile in every if tile != best)]


def _best(traits: Traits, candidates: list[Choice], rows: int, channels: int) -> Choice:
    """The largest tile of which there is one for each compute unit, else the smallest."""
    fitting = [t for t in candidates if t["rows"] < 2 * rows and t["columns"] < 2 * max(16, channels)]
    busy = [t for t in fitting if _groups(t, rows, channels) >= traits.compute_units]
    return busy[0] if busy else min(fitting, key=lambda t: t["rows"] * t["columns"] / t["slices"])


def _groups(tile: Choice, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


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
    """Rows are split between groups as long as they leave each a few blocks, and where a sum would become too long."""
    wanted = tile["waves"] * e.traits.compute_units // _groups(tile, x.channels, dy.channels)
    groups = max(1, min(wanted, x.rows // (64 * tile["slices"])), ceil_div(x.rows, LONGEST_SUM))
    kernel_sum, count = start_sum(e, gradient, x.rows, groups)
    dy_sum = start_sum(e, sums, x.rows, groups)[0] if sums else None
    targets = [s.target.update if add else s.target.write for s in (kernel_sum, dy_sum) if s]
    _launch(
        e, "backward_weights", tile, (x.channels, dy.channels, kernel_sum.groups), x.read, dy.read, *targets, x.rows,
        x.channels, dy.channels, count, int(add), flops=flops, sums=sums is not None,
    )  # fmt: skip
    return kernel_sum, dy_sum


def _launch(e: Emitter, name: str, tile: Choice, size: tuple[int, ...], *arguments, flops: int, **macros: int) -> None:
    rows, columns, item_rows, item_columns, slices = (tile[name] for name in NAMES)
    group = rows // item_rows * (columns // item_columns) * slices
    grid = (ceil_div(size[0], rows) * group, ceil_div(size[1], columns), *size[2:])
    e.launch(
        "pointwise_local.cl", f"pointwise_local_{name}", grid, *arguments, whole=True, group=group, flops=flops,
        rows=rows, columns=columns, item_rows=item_rows, item_columns=item_columns, **macros,
    )  # fmt: skip
