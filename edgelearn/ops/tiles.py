"""Tile sizes: the outputs of one work-item. On CPUs a tile fills the vector registers; on GPUs many small ones hide
latency."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from edgelearn.tuned.store import KernelConfig, Traits

PRODUCT_ROWS = (14, 12, 8, 7, 6, 4, 2, 1)  # candidates for the rows of a matrix-product tile
PANELS = (3, 2, 1)  # candidates for the blocks of 16 channels of a tile
ROW_TILES = (14, 8, 7, 6, 4, 2, 1)  # candidates for the neighbouring outputs of a convolution tile
DEPTHWISE_TILES = (14, 8, 7, 4, 2, 1)  # and of a depthwise one
DEPTHS = (16, 8, 4, 3, 2, 1)  # channels of a tile of a convolution's weight gradient
ITEMS_CPU, ITEMS_GPU = (4, 16, 32), (32, 64, 256, 512)  # candidates for the work-items of a compute unit


def panels(traits: Traits, blocks: int) -> int:
    """Blocks of 16 output channels of a tile: a divisor of `blocks`."""
    if traits.gpu:
        return 2 - blocks % 2
    return next(p for p in (2, 3, 1) if blocks % p == 0) if traits.vector_width >= 16 else 1


def product_rows(traits: Traits, rows: int) -> int:
    """Rows of a matrix-product tile: the size that computes fewest rows twice, the largest of equals."""
    sizes = (4, 2, 1) if traits.gpu else (14, 12, 7, 4, 2, 1) if traits.vector_width >= 16 else (6, 4, 2, 1)
    fitting = [s for s in sizes if s <= rows]
    if rows >= 64:
        fitting = fitting[:2]
    return min(fitting, key=lambda s: (-(-rows // s) * s * (1.0 + 0.5 / s), -s))


def product_depth(traits: Traits) -> int:
    """Rows of the weights a tile of the weight gradient: a divisor of 16."""
    return 8 if not traits.gpu and traits.vector_width >= 16 else 4


def row_tile(traits: Traits, width: int) -> int:
    """Neighbouring outputs of a convolution tile."""
    sizes = (4, 2, 1) if traits.gpu else (14, 8, 7, 4, 2, 1) if traits.vector_width >= 16 else (6, 4, 2, 1)
    return min(sizes, key=lambda s: (-(-width // s) * s * (1.0 + 1.0 / s), -s))


def depthwise_tile(traits: Traits, width: int, stride: int = 1) -> int:
    """Neighbouring outputs of a depthwise tile: least waste, then 7, which divides the maps of most networks, so that
    few kernels serve all of them. Where outputs share few inputs, GPUs do better with many work-items."""
    sizes = (2, 1) if traits.gpu and stride > 1 else (7, 8, 4, 2, 1)
    return min(sizes, key=lambda s: (-(-width // s) * s * (1.0 if s >= 4 else 1.5), sizes.index(s)))


def worth_trying(best: KernelConfig, **sizes: Iterable[int]) -> list[KernelConfig]:
    """Candidates of a decision: the best guess, then all other combinations of `sizes`."""
    every = [dict(zip(sizes, values, strict=True)) for values in product(*sizes.values())]
    return [best, *(choice for choice in every if choice != best)]


def up_to(sizes: Iterable[int], most: int) -> list[int]:
    return [size for size in sizes if size <= most]


def dividing(sizes: Iterable[int], whole: int) -> list[int]:
    return [size for size in sizes if whole % size == 0]


def items(traits: Traits) -> tuple[int, ...]:
    """Candidates for the work-items of a compute unit that share a sum; 0 is the rule of thumb."""
    return (0, *(ITEMS_GPU if traits.gpu else ITEMS_CPU))


def of_convolution(traits: Traits, width: int, blocks: int) -> list[KernelConfig]:
    """Neighbouring outputs x blocks of channels of a tile."""
    best = {"tile": row_tile(traits, width), "panels": panels(traits, blocks)}
    return worth_trying(best, tile=up_to(ROW_TILES, width), panels=dividing(PANELS, blocks))
