"""Tiles of matrix products by matrix units: see kernels/include/gathered.h."""

from __future__ import annotations

from edgelearn.tuned.store import KernelConfig, Traits

from .emit import LONGEST_SUM
from .tensor import ceil_div

# Rows and channels of a work-group's tile, and of a warp's; steps of the depth that are copied at a time
NAMES = ("rows", "columns", "warp_rows", "warp_columns", "batch")
LARGEST = 128 * 128
Steps = dict[tuple[int, ...], float]  # how long a step takes, by tile, beside one of 128 x 128
# Steps of halves and integers were timed on an H100, the others on an H200
HALVES: Steps = {
    (128, 128, 64, 32, 2): 1.0, (128, 64, 32, 32, 2): 0.96, (64, 128, 32, 32, 2): 1.05, (64, 64, 32, 32, 2): 0.62,
    (128, 32, 32, 16, 2): 0.75, (64, 32, 16, 16, 2): 0.55,
}  # fmt: skip
TF32: Steps = {
    (128, 128, 64, 64, 1): 1.0, (128, 64, 64, 64, 1): 0.54, (128, 64, 32, 64, 1): 0.56, (64, 64, 32, 32, 2): 0.36,
    (64, 64, 32, 64, 2): 0.36, (64, 32, 16, 32, 2): 0.26,
}  # fmt: skip
HALVES_BY_WARPGROUPS: Steps = {  # see kernels/include/warpgroups.h
    (128, 128, 16, 128, 2): 1.0, (128, 128, 32, 64, 2): 1.0, (128, 128, 32, 128, 2): 1.02, (256, 128, 32, 128, 1): 2.06,
    (64, 128, 16, 128, 2): 0.56, (128, 64, 32, 64, 2): 0.59, (256, 64, 32, 64, 1): 1.18, (256, 64, 64, 64, 1): 1.12,
    (64, 64, 16, 64, 4): 0.34, (128, 32, 16, 32, 2): 0.46, (64, 32, 16, 32, 4): 0.23,
}  # fmt: skip
TF32_BY_WARPGROUPS: Steps = {  # as those of halves, not timed one by one
    (128, 128, 16, 128, 1): 1.0, (128, 128, 32, 64, 1): 1.0, (128, 128, 32, 128, 1): 1.02, (64, 128, 16, 128, 1): 0.56,
    (128, 64, 32, 64, 1): 0.57, (128, 64, 16, 64, 1): 0.57, (64, 64, 16, 64, 2): 0.34, (128, 32, 16, 32, 1): 0.46,
    (64, 32, 16, 32, 2): 0.23,
}  # fmt: skip
BATCHES = (4, 2)  # of integers, as far as local memory has room for three
INTEGERS: Steps = {
    (*shape, batch): step
    for (*shape, _), step in HALVES.items()
    for batch in BATCHES
    if batch * (shape[0] + shape[1]) <= 768
}
WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
ADDING = 240  # products that a partial sum takes the time of, to be written and read


def tiles(traits: Traits, rows: int, depth: int, channels: int, steps: Steps) -> list[KernelConfig]:
    """The tiles of `steps` for a product of `rows` x `channels`, best guess first."""
    return sorted(_configs(steps), key=lambda tile: _cost(traits, tile, steps, rows, depth, channels))


def weight_tiles(traits: Traits, rows: int, depth: int, channels: int, steps: Steps) -> list[KernelConfig]:
    """The tiles of `steps` for a gradient of `rows` x `channels`, summed over `depth` rows of activations."""

    def total(tile: KernelConfig) -> float:
        parts = split(traits, tile, rows, depth, channels)
        adding_up = ADDING * rows * channels * parts / traits.compute_units
        return _cost(traits, tile, steps, rows, ceil_div(depth, parts), channels, parts) + adding_up

    return sorted((tile | {"waves": waves} for waves in WAVES for tile in _configs(steps)), key=total)


def _configs(steps: Steps) -> list[KernelConfig]:
    return [dict(zip(NAMES, tile, strict=True)) for tile in steps]


def _cost(
    traits: Traits, tile: KernelConfig, steps: Steps, rows: int, depth: int, channels: int, parts: int = 1
) -> float:
    """Estimated work of a compute unit, in products of the largest tile: compute units hold several work-groups, but
    the last ones leave some idle."""
    rounds = max(1.0, _groups(tile, rows, channels) * parts / traits.compute_units)
    return rounds * steps[tuple(tile[name] for name in NAMES)] * LARGEST * (depth + 100)


def _groups(tile: KernelConfig, rows: int, channels: int) -> int:
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def group_size(tile: KernelConfig) -> int:
    """Work-items of a work-group: warps of 32."""
    return tile["rows"] // tile["warp_rows"] * (tile["columns"] // tile["warp_columns"]) * 32


def split(traits: Traits, tile: KernelConfig, rows: int, depth: int, channels: int) -> int:
    """Groups that a sum over `depth` rows is split between."""
    wanted = tile["waves"] * traits.compute_units // _groups(tile, rows, channels)
    return max(1, min(wanted, depth // 256), ceil_div(depth, LONGEST_SUM))
