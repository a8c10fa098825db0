"""Convolutions and dense layers as products by matrix units: see kernels/convolution_units.cl."""

from __future__ import annotations

from edgelearn.launch import KernelConfig

from .emit import Emitter, Epilogue, Traits
from .formats import StoredType
from .reduce import emit_channel_sums
from .sums import LONGEST_SUM, Sum, start_sum
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window

# Rows and channels of a work-group's tile, and of a warp's
NAMES = ("rows", "columns", "warp_rows", "warp_columns")
# How long a step of such a tile takes on an H100, beside the largest
STEP = {(128, 128): 1.0, (128, 64): 0.96, (64, 128): 1.05, (64, 64): 0.62, (128, 32): 0.75, (64, 32): 0.55}
LARGEST = 128 * 128
SHAPES = (
    (128, 128, 64, 32), (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 32), (128, 32, 32, 16), (64, 32, 16, 16),
)  # fmt: skip
TILES: list[KernelConfig] = [dict(zip(NAMES, shape, strict=True)) for shape in SHAPES]
WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
WEIGHT_TILES = [tile | {"waves": waves} for waves in WAVES for tile in TILES]
ADDING = 240  # products that a partial sum takes the time of, to be written and read


def tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[KernelConfig]:
    """Candidates for a product of `rows` x `channels`, best guess first."""
    return sorted(TILES, key=lambda tile: _cost(traits, tile, rows, depth, channels))


def weight_tiles(traits: Traits, rows: int, depth: int, channels: int) -> list[KernelConfig]:
    """Candidates for a gradient of `rows` x `channels`, summed over `depth` rows of activations."""

    def cost(tile: KernelConfig) -> float:
        split = _split(traits, tile, rows, depth, channels)
        adding_up = ADDING * rows * channels * split / traits.compute_units
        return _cost(traits, tile, rows, ceil_div(depth, split), channels, split) + adding_up

    return sorted(WEIGHT_TILES, key=cost)


def _cost(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int, split: int = 1) -> float:
    """Estimated work of a compute unit, in products of the largest tile: compute units hold several work-groups, but
    the last ones leave some idle."""
    rounds = max(1.0, _groups(tile, rows, channels) * split / traits.compute_units)
    return rounds * STEP[tile["rows"], tile["columns"]] * LARGEST * (depth + 100)


def _groups(tile: KernelConfig, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def _group(tile: KernelConfig) -> int:
    """Work-items of a work-group: warps of 32."""
    return tile["rows"] // tile["warp_rows"] * (tile["columns"] // tile["warp_columns"]) * 32


def _split(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int) -> int:
    """Groups that a sum over `depth` rows is split between."""
    wanted = tile["waves"] * traits.compute_units // _groups(tile, rows, channels)
    return max(1, min(wanted, depth // 256), ceil_div(depth, LONGEST_SUM))


def emit_forward(
    e: Emitter, window: Window, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue, flops: int
) -> None:
    problem = y.rows, window.taps * x.channels, y.channels
    with _choose(e, "forward", window, problem, tiles(e.traits, *problem)) as tile:
        images = y.rows // (window.output[0] * window.output[1])
        _launch(
            e, "forward", tile, window, x, (y.rows, y.channels), x.read, kernel.read, y.write, images, window.height,
            window.width, *window.output, x.channels, y.channels, *epilogue.arguments, flops=flops, **epilogue.macros,
        )  # fmt: skip


def emit_backward_data(e: Emitter, window: Window, transposed: Tensor, dy: Tensor, target: Target, flops: int) -> None:
    dx, strides = target.tensor, window.strides
    images = dx.rows // (window.height * window.width)
    rows = images * ceil_div(window.height, strides[0]) * ceil_div(window.width, strides[1])
    products = strides[0] * strides[1]
    problem = rows, ceil_div(window.taps * dy.channels, products), dx.channels
    with _choose(e, "backward_data", window, problem, tiles(e.traits, *problem)) as tile:
        _launch(
            e, "backward_data", tile, window, dy, (rows, dx.channels, products), dy.read, transposed.read, images,
            *window.output, window.height, window.width, dy.channels, dx.channels, *target.arguments, flops=flops,
            **target.macros,
        )  # fmt: skip


def emit_backward_weights(
    e: Emitter, window: Window, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool, flops: int
) -> tuple[Sum, Sum | None]:
    rows = window.taps * x.blocks * BLOCK
    problem = rows, dy.rows, dy.channels
    with _choose(e, "backward_weights", window, problem, weight_tiles(e.traits, *problem)) as tile:
        kernel_sum, span = start_sum(e, gradient, dy.rows, _split(e.traits, tile, *problem))
        images = x.rows // (window.height * window.width)
        _launch(
            e, "backward_weights", tile, window, x, (rows, dy.channels, kernel_sum.groups), x.read, dy.read,
            kernel_sum.target.update if add else kernel_sum.target.write, images, window.height, window.width,
            *window.output, x.channels, dy.channels, span, int(add), flops=flops,
        )  # fmt: skip
    return kernel_sum, emit_channel_sums(e, dy, sums, add) if sums else None


def _choose(e: Emitter, name: str, window: Window, problem: tuple[int, ...], candidates: list[KernelConfig]):
    return e.choose(f"units_{name}_{e.compute.type}", (*problem, *window.kernel), candidates)


def _launch(
    e: Emitter, name: str, tile: KernelConfig, window: Window, x: Tensor, size: tuple[int, ...], *arguments, flops: int,
    **macros,
) -> None:  # fmt: skip
    group, sizes = _group(tile), {name: tile[name] for name in NAMES}
    grid = (ceil_div(size[0], tile["rows"]) * group, ceil_div(size[1], tile["columns"]), *size[2:])
    macros |= {"unit": e.traits.unit(e.compute.type) or "PLAIN_MMA", "type": StoredType.of(x.dtype)} | x.value_macros
    e.launch(
        "convolution_units.cl", f"convolution_units_{name}", grid, *arguments, whole=True, group=group, flops=flops,
        **sizes, **window.macros, **macros,
    )  # fmt: skip
