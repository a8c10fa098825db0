"""Families of kernels that multiply floats.

A family names the configurations in which it can compute a product, best guess first, and emits the launches of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from edgelearn.device import WARPGROUPS, KernelConfig, Traits, with_probe
from edgelearn.launch import Role, Tail

from . import products
from .emit import LONGEST_SUM, Emitter, GradientSum, emit_channel_sums, start_sum
from .formats import StoredType, tensor_of
from .products import DATA, FORWARD, WEIGHTS, MatrixTiles, Product, Sizes
from .tensor import BLOCK, Tensor, ceil_div

Sums = tuple[GradientSum, GradientSum | None]  # of the kernel's gradient, and of the bias's if the kernels compute it


class Family:
    """Base of families: kernels that compute products.

    - `tails`: what they can do as they write the result of a part, where that takes less time than a launch of its own:
      see `Tail` and docs/results/speed.md.
    """

    tails: ClassVar[Mapping[str, str]] = {}

    def leave_tail(self, e: Emitter, p: Product, groups: int, rows: int, span: int = 0) -> None:
        """Give the last launch the tail of a product that it writes in `groups` of `rows` rows, which begin anew after
        each `span` rows (default: of all). On GPUs there is none, since a work-item has too few rows; nor on a bare
        processor, whose kernels have none."""
        if (work := self.tails.get(p.part)) and not (e.traits.gpu or e.traits.bare):
            e.leave_tail(Tail(p.out.buffer, work, groups, rows, span or p.out.rows, p.mask))

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        """Configurations for a product, best guess first; none if the family can't compute it."""
        raise NotImplementedError

    def rank(self, e: Emitter, p: Product) -> int:
        """Families of a lower rank go first."""
        return 0

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        """Emit the launches of a product. Returns the sums of WEIGHTS, which `finish` completes."""
        raise NotImplementedError


def has_columns(p: Product) -> bool:
    """True for a convolution whose groups are whole blocks of channels, in floats."""
    columns, tensors = p.kind == "grouped", (p.x, p.y, *map(tensor_of, p.factors))
    whole = all(t.channels % (BLOCK * p.geometry.groups) == 0 for t in (p.x, p.y))
    return columns and whole and all(t.dtype == "float32" for t in tensors)


class Convolution(Family):
    """Any convolution, or one in groups of whole blocks (`has_columns`): kernels/convolution.cl."""

    tails: ClassVar = {FORWARD: "moments"}

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        alone = not e.traits.gpu or p.left.block < BLOCK  # else for what work-groups share there are other kernels
        if p.part != WEIGHTS:
            found = products.convolution_tiles(e.traits, p)
            return found if alone else found[:1]
        best, sizes = products.convolution_depths(e.traits, p.x.block, p.y.blocks // p.geometry.groups, items=0)
        return products.worth_trying(best, **sizes, items=products.items(e.traits)) if alone else [best]

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        (images, height, width, *output), left, stride = p.sizes, p.left, p.strides[1]
        more, groups = p.macros | p.window.macros | e.compute.macros, p.geometry.groups
        channels = left.channels // groups
        if groups > 1:
            result = p.y if p.part == WEIGHTS else p.out
            more = more | {"column_blocks": result.blocks // groups}
        if groups > 1 and p.part == DATA:
            p = replace(p, factors=(p.factors[0], _transposed_columns(e, p)))
        if p.part != WEIGHTS:
            rows, columns = p.sink
            tiles = images * rows * stride * ceil_div(columns, config["tile"] * stride)
            e.launch(
                "convolution.cl", f"convolution_{p.part}", (tiles, p.out.blocks // config["panels"]), *p.reads,
                *p.first, images, height, width, channels, *output, *p.last, flops=p.flops, in_block=left.block,
                depth=1, **config, **more,
            )  # fmt: skip
            self.leave_tail(e, p, tiles, config["tile"], columns)
            return None
        depth, panels, members = config["depth"], config["panels"], e.traits.members
        work = (p.window.taps * ceil_div(channels, depth), p.y.blocks // panels)
        _, rows = e.split_rows(images * output[0], work[0] * work[1], 1 if e.traits.gpu else 4, config["items"])
        total, rows = _start_rows(e, p, rows, members)
        e.launch(
            "convolution.cl", "convolution_backward_weights", (work[0] * members, work[1], total.groups), *p.reads,
            total.access(p.add), images, height, width, channels, *output, rows, p.y.blocks, int(p.add),
            flops=p.flops, in_block=left.block, tile=1, panels=panels, depth=depth, **more,
        )  # fmt: skip
        return total, None


def _transposed_columns(e: Emitter, p: Product) -> Tensor:
    """Emit the launch that transposes a kernel group by group, as `convolution_backward_data` reads it."""
    kernel, groups, taps = tensor_of(p.factors[1]), p.geometry.groups, p.window.taps
    of_group = p.x.channels // groups, p.y.channels // groups
    transposed = e.tensor("kernel transposed by groups", (taps * of_group[1], p.x.channels))
    e.launch(
        "transpose.cl", "transpose_columns", (transposed.rows, transposed.blocks), kernel.read, transposed.write, taps,
        *of_group, whole=True,
    )  # fmt: skip
    return transposed


def _start_rows(e: Emitter, p: Product, rows: int, members: int = 1, parts: int = 1) -> tuple[GradientSum, int]:
    """Begin a sum over the rows of the output's images, each in `parts`, of which a work-item takes up to `rows`."""
    assert p.gradient
    height, width = p.window.output
    groups = ceil_div(p.images * height * parts, members * min(rows, ceil_div(LONGEST_SUM * parts, width)))
    return start_sum(e, p.gradient, p.images * height * parts, groups, members)


CACHED_BYTES = 512 << 10  # of activations, a chunk of rows that the tiles read repeatedly
FEW_ITEMS = 4096  # a quarter of what keeps a GPU busy
FEW_TILE = 4  # inputs: short programs, few of them, since fetching one takes a GPU longer than small layers do
ROLLING_VECTORS = 40  # of 4 channels that a work-item of a GPU has registers for, beside what it reads
FEW_ROWS = 4  # up to here the gradient of the input is summed within vectors, without a transposed kernel


class Pointwise(Family):
    """Products over blocked matrices, y = x w, for pointwise convolutions and dense layers: kernels/pointwise.cl."""

    tails: ClassVar = {FORWARD: "moments"}

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        traits, blocks = e.traits, (p.y if p.part == WEIGHTS else p.out).blocks
        best = {"panels": products.panels(traits, blocks)}
        if p.part == WEIGHTS:
            depth = products.pointwise_depth(traits, p.left.channels, blocks // best["panels"])
            best, sizes = {"depth": depth} | best, {"depth": (4, 8, 16)}
        else:
            rows = p.left.rows
            best = {"rows": products.product_rows(traits, rows, best["panels"])} | best
            sizes = {"rows": products.up_to(products.PRODUCT_ROWS, rows)}
        panels = products.dividing(products.PANELS, blocks)
        return [best] if traits.gpu else products.worth_trying(best, **sizes, panels=panels)

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        x, macros = p.left, p.macros | e.compute.macros
        row_bytes = 4 * x.blocks * x.block
        if p.part != WEIGHTS:
            tiles = ceil_div(x.rows, config["rows"])
            # All panels of channels read a chunk of rows while it is in the cache.
            chunks = 1 if e.traits.gpu else min(tiles, ceil_div(x.rows * row_bytes, CACHED_BYTES))
            e.launch(
                "pointwise.cl", f"pointwise_{p.part}",
                (ceil_div(tiles, chunks), p.out.blocks // config["panels"], chunks), *p.reads, *p.first, x.rows,
                x.channels, *p.last, flops=p.flops, depth=1, **config, **macros,
            )  # fmt: skip
            self.leave_tail(e, p, tiles, config["rows"])
            return None
        assert p.gradient
        # For small kernels, groups of rows are summed in parallel. Large kernels keep the device busy by themselves:
        # chunks of rows that fit the cache follow one another.
        dy, items = p.y, (ceil_div(x.channels, config["depth"]), p.y.blocks // config["panels"])
        groups, _ = e.split_rows(x.rows, items[0] * items[1])
        total, count = start_sum(e, p.gradient, x.rows, groups)
        dy_sum = start_sum(e, p.sums, x.rows, groups)[0] if p.sums else None
        if total.groups == 1:
            count = max(256, CACHED_BYTES // row_bytes)
        checked = not e.traits.gpu and total.partials is None and e.fuses("checks")
        parts = products.depth_parts(e.traits, config["depth"])
        flags_name, vectors = f"{p.gradient.buffer.name} flags of {prod(items)} tiles", BLOCK // e.traits.vector
        flags = e.tensor(flags_name, (1, prod(items) * vectors), Role.CHECK) if checked else None
        for first in range(0, x.rows, total.groups * count):
            more, rows = p.add or first > 0, min(total.groups * count, x.rows - first)
            e.launch(
                "pointwise.cl", "pointwise_backward_weights", (*items, total.groups), x.read_rows(rows),
                dy.read_rows(rows), *(s.access(more) for s in (total, dy_sum) if s), x.rows, x.channels, dy.blocks,
                first, min(count, rows), int(more), *([flags.write] if flags else []),
                flops=p.flops * rows // x.rows, rows=1, sums=dy_sum is not None, checked=checked, **config, **parts,
                **macros,
            )  # fmt: skip
        return replace(total, checked=checked), dy_sum


class FewRows(Family):
    """The gradient of a dense layer's few inputs, from the kernel that is not transposed."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        return [{}]

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> None:
        e.launch(
            "pointwise.cl", "few_rows_backward_data", (p.x.blocks,), *p.reads, p.y.rows, p.x.channels, p.y.blocks,
            *p.last, flops=p.flops, whole=True, **p.macros, **e.compute.macros,
        )  # fmt: skip


def has_few_rows(e: Emitter, x: Tensor) -> bool:
    return not e.traits.gpu and x.rows <= FEW_ROWS


class Grouped(Family):
    """Convolutions with several groups of channels, which need not begin at blocks of 16: kernels/grouped.cl."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        return [{}]

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        (images, height, width, *output), (x, y) = p.sizes, (p.x, p.y)
        geometry = images, height, width, x.channels, *output, y.channels, p.geometry.groups
        more: dict[str, Any] = {"flops": p.flops, "whole": True, "in_block": x.block, **p.window.macros, **p.macros}
        if p.part != WEIGHTS:
            grid, kernel = (p.out.rows, p.out.blocks), f"grouped_{p.part}"
            e.launch("grouped.cl", kernel, grid, *p.reads, *p.first, *geometry, *p.last, **more)
            return None
        assert p.gradient and isinstance(p.factors[1], Tensor)
        dy_sum = emit_channel_sums(e, p.factors[1], p.sums, p.add) if p.sums else None
        units, image_rows = p.gradient.rows * y.blocks, images * output[0]
        total, rows = start_sum(e, p.gradient, image_rows, e.split_rows(image_rows, units, least=1)[0])
        e.launch(
            "grouped.cl", "grouped_backward_weights", (p.gradient.rows, y.blocks, total.groups), *p.reads,
            total.access(p.add), *geometry, rows, int(p.add), **more,
        )  # fmt: skip
        return total, dy_sum


class Depthwise(Family):
    """Convolutions of each channel with its own kernel: kernels/depthwise.cl."""

    tails: ClassVar = {FORWARD: "moments", DATA: "norm_sums"}

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        """Neighbouring outputs, and work-items of a compute unit."""
        width, stride = ceil_div(p.sink[1], p.strides[1]), p.window.strides[1]
        if self._few(e, p):
            tile = max(1, FEW_TILE // stride)
        else:
            tile = products.depthwise_tile(e.traits, width, 1 if p.part == WEIGHTS else stride)
        best = {"tile": tile, "items": 0}
        tiles = products.up_to(products.DEPTHWISE_TILES, width)
        return products.worth_trying(best, tile=tiles, items=products.items(e.traits))

    def _few(self, e: Emitter, p: Product) -> bool:
        """True where rows would leave most of a GPU idle, so that work-items take single tiles."""
        return e.traits.gpu and p.images * p.window.output[0] * p.x.blocks < FEW_ITEMS

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        tile, items, gpu, blocks = config["tile"], config["items"], e.traits.gpu, p.x.blocks
        more: dict[str, Any] = {"flops": p.flops, "tile": tile, **p.window.macros, **p.macros}
        if p.part != WEIGHTS:  # single tiles on GPUs unless `items` is given, bands of rows on CPUs
            height, width = p.sink
            steps = 1 if gpu else ceil_div(width, tile * p.strides[1])
            columns = ceil_div(width, tile * p.strides[1] * steps)
            _, rows = e.split_rows(height, p.images * blocks * columns, least=1 if gpu else 7, items=items)
            rows = 1 if gpu and not items else rows
            grid = (p.images * ceil_div(height, rows) * columns, blocks)
            kernel = f"depthwise_{p.part}"
            e.launch("depthwise.cl", kernel, grid, *p.reads, *p.first, *p.sizes, rows, steps, *p.last, **more)
            self.leave_tail(e, p, grid[0], rows * width, height * width)
            return None
        height, width = p.window.output
        few, window = self._few(e, p), p.window
        rolls = window.strides == window.dilation == (1, 1) and window.kernel[0] * tile + window.taps <= ROLLING_VECTORS
        rolling = gpu and not few and rolls
        members, parts = e.traits.members, ceil_div(width, tile) if few or rolling else 1
        row_parts = p.images * height * parts
        rows = e.split_rows(row_parts, blocks, 1 if gpu else 7, items)[1]
        total, rows = _start_rows(e, p, rows, members, parts)
        dy_sum = start_sum(e, p.sums, row_parts, total.groups, members)[0] if p.sums else None
        e.launch(
            "depthwise.cl", "depthwise_backward_weights", (total.groups * members, blocks), *p.reads,
            *(s.access(p.add) for s in (total, dy_sum) if s), *p.sizes, rows, blocks, int(p.add),
            parts, sums=dy_sum is not None, **({"rolling": True} if rolling else {}), **more,
        )  # fmt: skip
        return total, dy_sum


# Rows and channels of a work-group's tile and of a work-item's, and the teams of work-items that share the depth:
# large tiles read least, small ones and many teams keep a device busy with small problems. All fit 32 KiB of local
# memory, the least that OpenCL's full profile asks for, and work-groups of 256.
LOCAL_NAMES = ("rows", "columns", "item_rows", "item_columns", "slices")
LOCAL_SHAPES = (
    (256, 128, 16, 8, 1), (128, 128, 8, 8, 1), (64, 128, 8, 8, 1), (128, 64, 8, 8, 1), (64, 64, 8, 4, 1),
    (32, 64, 4, 4, 2), (32, 32, 4, 4, 2), (16, 32, 4, 4, 4), (16, 32, 4, 4, 8), (16, 16, 4, 4, 8), (8, 16, 2, 4, 8),
    (1, 16, 1, 4, 16), (128, 32, 8, 4, 1),
)  # fmt: skip
REGISTERS, ITEMS = 1 << 16, 2048  # that a compute unit has, and work-items that it can hold
BUSY = 24000  # sums that keep a compute unit busy, while some of its work-groups wait for memory and for each other


def _local_group(tile: KernelConfig) -> int:
    return tile["rows"] // tile["item_rows"] * (tile["columns"] // tile["item_columns"]) * tile["slices"]


def _local_cost(traits: Traits, tile: KernelConfig, sizes: Sizes, parts: int) -> float:
    """Estimated work of the busiest compute unit: the multiply-adds of its tiles and the writing of their sums. Small
    tiles cost more, since they read more for each multiply-add, and so do few sums at a time, which leave it waiting.
    On an H200 the cheapest tile is on average 2 % slower than the fastest, over the layers of ResNet-18, MobileNet and
    MobileNet V2."""
    rows, depth, channels = sizes
    rounds = ceil_div(products.groups_of(tile, rows, channels) * parts, traits.compute_units)
    of_item, group = tile["item_rows"] * tile["item_columns"], _local_group(tile)
    resident = max(1, min(REGISTERS // (group * (2 * of_item + 36)), ITEMS // group))
    busy = min(1.0, min(rounds, resident) * group * of_item / BUSY) ** 0.3
    work = rounds * tile["rows"] * tile["columns"] * (depth + 20)
    return work * (1 + 18 / tile["rows"] + 8 / tile["columns"]) / busy


LOCAL = MatrixTiles(
    [dict(zip(LOCAL_NAMES, shape, strict=True)) for shape in LOCAL_SHAPES], _local_cost,
    lambda traits, tile, sizes, parts, cost: cost * (1 + tile["waves"] / 80),  # partial sums take a while in the end
    lambda tile: 64 * tile["slices"],
)  # fmt: skip


class Local(Family):
    """Convolutions as matrix products whose work-groups share tiles in local memory, for GPUs:
    kernels/convolution_local.cl."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        if not e.traits.gpu or (p.left.block < BLOCK and p.kind != "dense"):
            return []
        if p.part == WEIGHTS:
            return LOCAL.for_weights(e.traits, (p.window.taps * p.x.channels, p.y.rows, p.y.channels))
        rows = ceil_div(p.out.rows, products.products_of(p))
        return LOCAL.sorted(e.traits, (rows, p.window.taps * p.left.channels, p.out.channels))

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        return _emit_matrix(
            e, p, config, "convolution_local", LOCAL, _local_group(config), p.window.taps * p.x.blocks * BLOCK,
            {name: config[name] for name in LOCAL_NAMES[:-1]} | e.compute.macros, direct=p.window.is_pointwise,
        )  # fmt: skip


def _emit_matrix(
    e: Emitter, p: Product, tile: KernelConfig, name: str, tiles: MatrixTiles, group: int, rows: int,
    sizes: dict[str, Any], **macros: Any,
) -> Sums | None:  # fmt: skip
    """Emit the launch of a convolution as a matrix product: a kernel of the file `name`. `rows`: of the gradient of the
    weights."""
    more: dict[str, Any] = {"whole": True, "group": group, "flops": p.flops, **sizes, **p.window.macros, **p.macros}
    if p.part != WEIGHTS:
        grid = products.matrix_grid(tile, group, products.data_rows(p), p.out.channels, *_products(p))
        e.launch(
            f"{name}.cl", f"{name}_{p.part}", grid, *p.reads, *p.first, p.images, *p.source, *p.sink, p.left.channels,
            p.out.channels, *p.last, **more | macros,
        )  # fmt: skip
        return None
    assert p.gradient
    parts = tiles.split(e.traits, tile, (rows, p.y.rows, p.y.channels))
    total, span = start_sum(e, p.gradient, p.y.rows, parts)
    own_sums = name == "convolution_local"
    dy_sum = start_sum(e, p.sums, p.y.rows, parts)[0] if p.sums and own_sums else None
    grid = products.matrix_grid(tile, group, rows, p.y.channels, total.groups)
    e.launch(
        f"{name}.cl", f"{name}_{p.part}", grid, *p.reads, *(s.access(p.add) for s in (total, dy_sum) if s), *p.sizes,
        p.x.channels, p.y.channels, span, int(p.add), **more | macros,
        **({"sums": dy_sum is not None} if own_sums else {}),
    )  # fmt: skip
    return total, dy_sum


def _products(p: Product) -> tuple[int, ...]:
    return (products.products_of(p),) if p.part == DATA else ()


# Rows and channels of a work-group's tile, and of a warp's; steps of the depth that are copied at a time
UNIT_NAMES = ("rows", "columns", "warp_rows", "warp_columns", "batch")
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
ADDING = 240  # products that a partial sum takes the time of, to be written and read


def unit_group(tile: KernelConfig) -> int:
    """Work-items of a work-group: warps of 32."""
    return tile["rows"] // tile["warp_rows"] * (tile["columns"] // tile["warp_columns"]) * 32


def unit_tiles(steps: Steps) -> MatrixTiles:
    """The tiles of `steps`. Their cost is the estimated work of a compute unit, in products of the largest tile:
    compute units hold several work-groups, but the last ones leave some idle."""

    def cost(traits: Traits, tile: KernelConfig, sizes: Sizes, parts: int) -> float:
        rows, depth, channels = sizes
        rounds = max(1.0, products.groups_of(tile, rows, channels) * parts / traits.compute_units)
        return rounds * steps[tuple(tile[name] for name in UNIT_NAMES)] * LARGEST * (depth + 100)

    def adding(traits: Traits, tile: KernelConfig, sizes: Sizes, parts: int, cost: float) -> float:
        return cost + ADDING * sizes[0] * sizes[2] * parts / traits.compute_units

    return MatrixTiles([dict(zip(UNIT_NAMES, t, strict=True)) for t in steps], cost, adding, lambda tile: 256)


def matrix_problem(p: Product, together: int = 1) -> Sizes:
    """Rows, depth and channels of a convolution as matrix products. `together`: taps of a step of the depth."""
    if p.part == WEIGHTS:
        return ceil_div(p.window.taps, together) * p.x.blocks * BLOCK, p.y.rows, p.y.channels
    depth = ceil_div(p.window.taps * p.left.channels, products.products_of(p))
    return products.data_rows(p), depth, p.out.channels


class Units(Family):
    """Convolutions and dense layers as products by matrix units: kernels/convolution_units.cl."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        tiles, problem = unit_tiles(self._steps(e, p)), matrix_problem(p, self.together(p))
        return tiles.for_weights(e.traits, problem) if p.part == WEIGHTS else tiles.sorted(e.traits, problem)

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        macros = {"unit": self._unit(e, p), "type": StoredType.of(p.left.dtype)} | p.left.value_macros
        if self._has_depth_rows(e, p):
            macros["depth_rows"] = 1
        if p.part != DATA:
            macros["together"] = self.together(p)
        rows, sizes = matrix_problem(p, self.together(p))[0], {name: config[name] for name in UNIT_NAMES}
        tiles, group = unit_tiles(self._steps(e, p)), unit_group(config)
        return _emit_matrix(e, p, config, "convolution_units", tiles, group, rows, sizes, **macros)

    def together(self, p: Product) -> int:
        """Taps of a step of the depth: several where 16 bytes hold all channels of `x`."""
        piece = 8 if p.x.is_halves else 4
        return BLOCK // piece if p.window.taps > 1 and p.x.channels <= piece and p.part != DATA else 1

    def _steps(self, e: Emitter, p: Product) -> Steps:
        """The tiles to choose from, with how long their steps take."""
        if self._unit(e, p) in with_probe(WARPGROUPS):
            return HALVES_BY_WARPGROUPS if e.compute.stores_halves else TF32_BY_WARPGROUPS
        return HALVES if e.compute.stores_halves else TF32

    def _has_depth_rows(self, e: Emitter, p: Product) -> bool:
        """False for gradients of weights: their depth is pixels, and rows in memory are channels."""
        return e.compute.depth_rows and p.part != WEIGHTS

    def _unit(self, e: Emitter, p: Product) -> str:
        """Warpgroups take floats in rows along the depth alone."""
        suits = e.compute.stores_halves or self._has_depth_rows(e, p)
        return (e.traits.unit(e.compute.type) if suits else e.traits.matrix_unit) or "PLAIN_MMA"
