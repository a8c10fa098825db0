"""Products of linear layers as data, and the sizes of tiles that kernels compute them in.

On CPUs a tile fills the vector registers; on GPUs many small ones hide latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from edgelearn.device import KernelConfig, Traits
from edgelearn.launch import Access, Buffer, In

from .emit import LONGEST_SUM
from .formats import QuantizedTensor, Stored, is_integers, reads, tensor_of
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window

FORWARD, DATA, WEIGHTS = "forward", "backward_data", "backward_weights"


@dataclass(frozen=True)
class Geometry:
    """The shape of a linear op's product: a window that slides over `images`, with `groups` of channels. A dense
    layer is a pointwise convolution whose rows are one image. `kind`: "dense", "convolution", "depthwise" or "grouped".
    """

    kind: str
    images: int
    window: Window
    groups: int = 1


@dataclass(frozen=True)
class Product:
    """One of the three products of a linear op: its output, or the gradient of its input or of its kernel.

    Arguments:
    - `part`: FORWARD, DATA or WEIGHTS, by which kernels and decisions are named.
    - `geometry`: the op's.
    - `x`, `y`: tensors of the shapes of the op's input and output.
    - `factors`: what is multiplied: input and kernel; gradient of the output and prepared kernel; or input and gradient
      of the output.
    - `first`, `last`: arguments before and after the sizes, by which results are written.
    - `macros`: that belong to these.
    - `target`: the sink of a product of integers.
    - `gradient`, `sums`, `add`: for WEIGHTS, see LinearOp.emit_backward_weights.
    - `mask`: the output of an activation by whose derivative a gradient is multiplied (default None).
    - `adds`: the sum with another tensor is part of the product (default False).
    """

    part: str
    geometry: Geometry
    x: Tensor
    y: Tensor
    factors: tuple[Stored, Stored]
    first: Sequence[Access | int | float] = ()
    last: Sequence[Access | int | float] = ()
    macros: dict[str, Any] = field(default_factory=dict)
    target: Target | None = None
    gradient: Tensor | None = None
    sums: Tensor | None = None
    add: bool = False
    mask: Buffer | None = None
    adds: bool = False

    @property
    def kind(self) -> str:
        return self.geometry.kind

    @property
    def window(self) -> Window:
        return self.geometry.window

    @property
    def images(self) -> int:
        return self.geometry.images

    @property
    def left(self) -> Tensor:
        """The first factor: values or gradients."""
        return tensor_of(self.factors[0])

    @property
    def out(self) -> Tensor:
        """The result of FORWARD and DATA."""
        return self.y if self.part == FORWARD else self.x

    @property
    def reads(self) -> tuple[In, ...]:
        return (*reads(self.factors[0]), *reads(self.factors[1]))

    @property
    def of_integers(self) -> bool:
        return is_integers(self.factors[0]) and isinstance(self.factors[0], QuantizedTensor)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images of `x`."""
        return self.window.height, self.window.width

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Images, height and width of `x`, height and width of `y`."""
        return self.images, *self.size, *self.window.output

    @property
    def source(self) -> tuple[int, int]:
        """Height and width of the images of the first factor."""
        return self.window.output if self.part == DATA else self.size

    @property
    def sink(self) -> tuple[int, int]:
        """Height and width of the images of `out`."""
        return self.size if self.part == DATA else self.window.output

    @property
    def strides(self) -> tuple[int, int]:
        """The result's rows and columns that lie as far apart are a matrix product of their own."""
        return self.window.strides if self.part == DATA else (1, 1)

    @cached_property
    def flops(self) -> int:
        return 2 * self.y.rows * self.y.channels * self.window.taps * (self.x.channels // self.geometry.groups)

    def flat(self, height: int, width: int) -> Product:
        """A pointwise product of one image of `height` x `width`."""
        return replace(self, geometry=replace(self.geometry, images=1, window=Window.pointwise(height, width)))


# Candidates: rows of a matrix-product tile; blocks of 16 channels of a tile; neighbouring outputs of a convolution
# tile, and of a depthwise one; channels of a tile of a convolution's weight gradient; work-items of a compute unit
PRODUCT_ROWS, PANELS = (14, 12, 8, 7, 6, 4, 2, 1), (3, 2, 1)
ROW_TILES, DEPTHWISE_TILES = (14, 8, 7, 6, 4, 2, 1), (14, 8, 7, 4, 2, 1)
DEPTHS = (16, 8, 4, 3, 2, 1)
ITEMS_CPU, ITEMS_GPU = (4, 16, 32), (32, 64, 256, 512)


def panels(traits: Traits, blocks: int) -> int:
    """Blocks of 16 output channels of a tile: a divisor of `blocks`."""
    if traits.gpu:
        return 2 - blocks % 2
    return next(p for p in (2, 3, 1) if blocks % p == 0) if traits.vector_width >= 16 else 1


def product_rows(traits: Traits, rows: int, panels: int = 1) -> int:
    """Rows of a matrix-product tile of so many `panels`, whose sums fit the vector registers: the size that computes
    fewest rows twice, the largest of equals."""
    wide = (14, 12, 7, 4, 2, 1) if panels < 3 else (8, 7, 4, 2, 1)
    sizes = (4, 2, 1) if traits.gpu else wide if traits.vector_width >= 16 else (6, 4, 2, 1)
    fitting = [s for s in sizes if s <= rows]
    if rows >= 64:
        fitting = fitting[:2]
    return min(fitting, key=lambda s: (-(-rows // s) * s * (1.0 + 0.5 / s), -s))


def product_depth(traits: Traits) -> int:
    """Rows of the weights a tile of the weight gradient: a divisor of 16."""
    return 8 if not traits.gpu and traits.vector_width >= 16 else 4


def pointwise_depth(traits: Traits, rows: int, panels: int) -> int:
    """The same for pointwise kernels. `rows`: of the weights; `panels`: tiles for each of them."""
    if traits.gpu or traits.vector_width != 8:
        return product_depth(traits)
    # With AVX2 a tile of 16 rows is computed in parts of 6, whose sums leave no instruction waiting for the one before,
    # as those of 4 rows do. Tiles must suffice to keep the cores busy, and rows that aren't there cost more than that.
    enough = ceil_div(rows, 16) * panels >= 8 * traits.compute_units
    return 16 if enough and ceil_div(rows, 16) * 16 <= 1.05 * ceil_div(rows, 4) * 4 else 4


def depth_parts(traits: Traits, depth: int) -> dict[str, int]:
    """PARTS in kernels/pointwise.cl, if a tile of the weight gradient is more than what fits into the registers."""
    return {"parts": 3} if depth == 16 and not traits.gpu and traits.vector_width == 8 else {}


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


def convolution_tiles(traits: Traits, p: Product) -> list[KernelConfig]:
    """Neighbouring outputs x blocks of channels of a tile."""
    width, blocks = ceil_div(p.sink[1], p.strides[1]), p.out.blocks // p.geometry.groups
    best = {"tile": row_tile(traits, width), "panels": panels(traits, blocks)}
    return worth_trying(best, tile=up_to(ROW_TILES, width), panels=dividing(PANELS, blocks))


def convolution_depths(
    traits: Traits, block: int, blocks: int, **more: int
) -> tuple[KernelConfig, dict[str, list[int]]]:
    """(best guess, sizes) of a tile of a convolution's weight gradient: channels of `block` x blocks of filters."""
    depth = min(block, 2 if traits.gpu else 4 if traits.vector_width == 8 else 8)
    best = {"depth": depth if block % depth == 0 else block, "panels": panels(traits, blocks), **more}
    return best, {"depth": dividing(DEPTHS, block), "panels": dividing(PANELS, blocks)}


WAVES = (1, 2, 4)  # work-groups a compute unit that a weight gradient is split into
Sizes = tuple[int, int, int]  # rows, depth and channels of a matrix product


@dataclass(frozen=True)
class MatrixTiles:
    """Tiles of a matrix product that work-groups share, from which the cheapest is chosen.

    Arguments:
    - `tiles`: with "rows" and "columns".
    - `cost`: estimated time, given the traits, a tile, the sizes of the product and the parts that a sum is split into.
    - `adding`: cost of adding up parts, by which a cost is replaced.
    - `least`: depth of a part at least, given a tile.
    """

    tiles: Sequence[KernelConfig]
    cost: Callable[[Traits, KernelConfig, Sizes, int], float]
    adding: Callable[[Traits, KernelConfig, Sizes, int, float], float]
    least: Callable[[KernelConfig], int]

    def sorted(self, traits: Traits, sizes: Sizes) -> list[KernelConfig]:
        """Candidates for a product, best guess first."""
        return sorted(self.tiles, key=lambda tile: self.cost(traits, tile, sizes, 1))

    def for_weights(self, traits: Traits, sizes: Sizes) -> list[KernelConfig]:
        """Candidates for a gradient of weights, whose depth is rows of activations."""

        def total(tile: KernelConfig) -> float:
            rows, depth, channels = sizes
            parts = self.split(traits, tile, sizes)
            cost = self.cost(traits, tile, (rows, ceil_div(depth, parts), channels), parts)
            return self.adding(traits, tile, sizes, parts, cost)

        tiles = [tile | {"waves": waves} for waves in WAVES for tile in self.tiles if tile["rows"] % BLOCK == 0]
        return sorted(tiles, key=total)

    def split(self, traits: Traits, tile: KernelConfig, sizes: Sizes) -> int:
        """Groups that a sum over the depth is split between: as long as they leave each a few blocks, and where it
        would become too long."""
        rows, depth, channels = sizes
        wanted = tile["waves"] * traits.compute_units // groups_of(tile, rows, channels)
        return max(1, min(wanted, depth // self.least(tile)), ceil_div(depth, LONGEST_SUM))


def groups_of(tile: KernelConfig, rows: int, channels: int) -> int:
    """Work-groups of a matrix product."""
    return ceil_div(rows, tile["rows"]) * ceil_div(channels, tile["columns"])


def matrix_grid(tile: KernelConfig, group: int, rows: int, channels: int, *more: int) -> tuple[int, ...]:
    """The grid of a matrix product whose work-groups have `group` work-items."""
    return ceil_div(rows, tile["rows"]) * group, ceil_div(channels, tile["columns"]), *more


def data_rows(p: Product) -> int:
    """Rows of each of the matrix products that FORWARD or DATA consists of."""
    (height, width), (down, right) = p.sink, p.strides
    return p.images * ceil_div(height, down) * ceil_div(width, right)


def products_of(p: Product) -> int:
    """Number of matrix products."""
    return prod(p.strides)
