"""How much one work-item computes. On CPUs a tile fills the vector registers; on GPUs many small ones hide latency."""

from __future__ import annotations

from .emit import Traits

PRODUCT_ROWS = (14, 12, 8, 7, 6, 4, 2, 1)  # rows of a matrix-product tile worth trying
PANELS = (3, 2, 1)  # blocks of 16 channels of a tile worth trying


def panels(traits: Traits, blocks: int) -> int:
    """Blocks of 16 output channels a tile: as many as divide `blocks`."""
    if traits.gpu or traits.lanes < 16:
        return 1
    return next(p for p in (2, 3, 1) if blocks % p == 0)


def product_rows(traits: Traits, rows: int) -> int:
    """Rows of a matrix-product tile: the size that computes fewest rows twice, the largest of equals."""
    sizes = (4, 2, 1) if traits.gpu else (14, 12, 7, 4, 2, 1) if traits.lanes >= 16 else (6, 4, 2, 1)
    fitting = [s for s in sizes if s <= rows]
    if rows >= 64:
        fitting = fitting[:2]
    return min(fitting, key=lambda s: (-(-rows // s) * s * (1.0 + 0.5 / s), -s))


def product_depth(traits: Traits) -> int:
    """Rows of the weights a tile of the weight gradient: a divisor of 16."""
    return 8 if not traits.gpu and traits.lanes >= 16 else 4


def row_tile(traits: Traits, width: int) -> int:
    """Neighbouring outputs of a convolution tile."""
    sizes = (2, 1) if traits.gpu else (14, 8, 7, 4, 2, 1) if traits.lanes >= 16 else (6, 4, 2, 1)
    return min(sizes, key=lambda s: (-(-width // s) * s * (1.0 + 1.0 / s), -s))


def depthwise_tile(traits: Traits, width: int) -> int:
    """Neighbouring outputs of a depthwise tile: least waste, then 7, which divides the maps of most networks, so that
    few kernels serve all of them."""
    sizes = (2, 1) if traits.gpu else (7, 8, 4, 2, 1)
    return min(sizes, key=lambda s: (-(-width // s) * s * (1.0 if s >= 4 else 1.5), sizes.index(s)))
