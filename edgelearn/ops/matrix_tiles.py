"""Tiles of matrix products by matrix units: see kernels/include/gathered.h."""

from __future__ import annotations

from edgelearn.launch import KernelConfig

from .emit import Traits
from .sums import LONGEST_SUM
from .tensor import ceil_div

# Rows and channels of a work-group's tile, and of a warp's
NAMES = ("rows", "columns", "warp_rows", "warp_columns")
# How long a step of such a tile takes on an H100, beside the largest
STEP = {(128, 128): 1.0, (128, 64): 0.96, (64, 128): 1.05, (64, 64): 0.62, (128, 32): 0.75, (64, 32): 0.55}
LARGEST = 128 * 128
SHAPES = (
    (128, 128, 64, 32), (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 32), (128, 32, 32, 16), (64, 32, 16, 16),
)  # fmt: skip


def _sides(tile: KernelConfig) -> int:
    return tile["rows"] + tile["columns"]


TILES: list[KernelConfig] = [dict(zip(NAMES, shape, strict=True)) for shape in SHAPES]
BATCHES = (4, 2)  # steps of 16 integers that are copied at a time, as far as local memory has room for three batches
INTEGER_TILES = [tile | {"batch": batch} for tile in TILES for batch in BATCHES if batch * _sides(tile) <= 768]
WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
ADDING = 240  # products that a partial sum takes the time of, to be written and read


def tiles(
    traits: Traits, rows: int, depth: int, channels: int, candidates: list[KernelConfig] = TILES
) -> list[KernelConfig]:
    """`candidates` for a product of `rows` x `channels`, best guess first."""
    return sorted(candidates, key=lambda tile: _cost(traits, tile, rows, depth, channels))


def weight_tiles(
    traits: Traits, rows: int, depth: int, channels: int, candidates: list[KernelConfig] = TILES
) -> list[KernelConfig]:
    """`candidates` for a gradient of `rows` x `channels`, summed over `depth` rows of activations."""

    def total(tile: KernelConfig) -> float:
        parts = split(traits, tile, rows, depth, channels)
        adding_up = ADDING * rows * channels * parts / traits.compute_units
        return _cost(traits, tile, rows, ceil_div(depth, parts), channels, parts) + adding_up

    return sorted((tile | {"waves": waves} for waves in WAVES for tile in candidates), key=total)


def _cost(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int, parts: int = 1) -> float:
    """Estimated work of a compute unit, in products of the largest tile: compute units hold several work-groups, but
    the last ones leave some idle."""
    rounds = max(1.0, _groups(tile, rows, channels) * parts / traits.compute_units)
    return rounds * STEP[tile["rows"], tile["columns"]] * LARGEST * (depth + 100)


def _groups(tile: KernelConfig, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def group_size(tile: KernelConfig) -> int:
    """Work-items of a work-group: warps of 32."""
    return tile["rows"] // tile["warp_rows"] * (tile["columns"] // tile["warp_columns"]) * 32


def split(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int) -> int:
    """Groups that a sum over `depth` rows is split between."""
    wanted = tile["waves"] * traits.compute_units // _groups(tile, rows, channels)
    return max(1, min(wanted, depth // 256), ceil_div(depth, LONGEST_SUM))
