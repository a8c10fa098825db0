"""Families of kernels that multiply 8-bit integers. Sums are added to floats, or rounded as they are written.

Kernels: quantized_convolution.cl, quantized_units.cl and quantized_depthwise.cl."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from edgelearn.device import KernelConfig, Traits
from edgelearn.launch import Role

from . import products
from .emit import LONGEST_SUM, Emitter, start_sum
from .families import INTEGERS, UNIT_NAMES, Family, Sums, matrix_problem, unit_group, unit_tiles
from .formats import NumberFormat, QuantizedTensor, Stored, StoredType, check_accumulators, largest_sum
from .products import WEIGHTS, Product
from .quantize import quad_macros
from .tensor import BLOCK, Tensor, ceil_div

QUAD = 4  # products that a unit adds up
LONGEST_ROW = 256  # pixels in a row of their own
MOST_DEPTH = 12  # channels of several taps in a tile of the weights' gradient
MOST_SUMS = 28  # vectors of sums of a tile
ITEMS = 16  # work-items of a compute unit
QUAD_UNITS = ("VNNI512", "AVX512BW")  # which shuffle four pixels of 16 channels at a time
# Its tiles are larger than registers: to widen bytes to shorts once for many sums saves more than sums in memory cost
PAIRS_UNIT = "AVX2"
QUAD_TILES = (1, 2, 4, 8)
GROUP_GPU = 128
EXACT = 1 << 24  # the most that float32 counts to by ones


def multiplies(e: Emitter, x: Tensor) -> bool:
    """True if a device's matrix units multiply the integers of `x`."""
    return bool(e.traits.matrix_unit) and x.block == BLOCK


def adds_residuals(e: Emitter, x: Stored) -> bool:
    """True if the kernels that multiply `x` can add to their results."""
    return isinstance(x, QuantizedTensor) and not multiplies(e, x.tensor)


def flattened(e: Emitter, p: Product) -> Product:
    """A pointwise product of blocks of 16 channels as one of a single image; for WEIGHTS with rows that quads fill."""
    if p.kind != "dense" and not (p.x.block == BLOCK and p.window.is_pointwise):
        return p
    if p.part != WEIGHTS:
        return p.flat(1, p.x.rows)
    width = _row_of_quads(p.x) if e.traits.quads else p.x.width
    return p.flat(p.x.rows // width, width)


def _row_of_quads(x: Tensor) -> int:
    """Pixels that a pointwise op takes as a row: so many rows of an image that quads fill them, if that divides all."""
    for width in (x.width, 2 * x.width, 4 * x.width):
        if width % QUAD == 0 and x.rows % width == 0:
            return width
    return x.rows if x.rows < LONGEST_ROW else x.width


def _factors(p: Product) -> tuple[QuantizedTensor, QuantizedTensor]:
    a, b = p.factors
    assert isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor)
    return a, b


def _check(e: Emitter, p: Product, terms: int) -> None:
    """Raises PlanError if a sum of `terms` products may overflow."""
    check_accumulators(e.layer, terms, *(factor.format for factor in _factors(p)))


class QuantizedConvolution(Family):
    """Convolutions, pointwise ones and dense layers."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        if p.part == WEIGHTS:
            return self._depths(e.traits, p)
        _check(e, p, p.window.taps * p.left.channels)
        choices = products.convolution_tiles(e.traits, p)
        best = choices[0]
        if e.traits.quads == PAIRS_UNIT:
            width = ceil_div(p.sink[1], p.strides[1])
            best = best | {"tile": products.row_tile(replace(e.traits, vector_width=BLOCK), width)}
        elif e.traits.quads and best["tile"] * best["panels"] > MOST_SUMS:  # no more sums than registers hold
            tiles = products.up_to(products.ROW_TILES, MOST_SUMS // best["panels"])
            best = best | {"tile": max(tiles)}
        return [best, *(choice for choice in choices if choice != best)]

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        if p.part == WEIGHTS:
            return self._emit_weights(e, p, config)
        (images, height, width, *output), stride = p.sizes, p.strides[1]
        assert p.target
        rows, columns = p.sink
        tiles = images * rows * stride * ceil_div(columns, config["tile"] * stride)
        e.launch(
            "quantized_convolution.cl", f"quantized_convolution_{p.part}",
            (p.target.items(e, _items(e, tiles * (p.out.blocks // config["panels"]))),), *p.reads, *p.first, images,
            height, width, p.left.channels, *output, p.out.blocks, *p.last, whole=True, flops=p.flops,
            in_block=p.left.block, depth=1, per_channel=_factors(p)[1].format.per_channel, **quad_macros(e.traits),
            **config, **p.window.macros, **p.macros,
        )  # fmt: skip
        return None

    def _wide(self, traits: Traits, p: Product) -> int:
        """Taps that count as one with the channels of all: WIDE in kernels/quantized_convolution.cl."""
        return p.window.kernel[1] if traits.quads and p.x.block < BLOCK and p.window.dilation[1] == 1 else 1

    def _depths(self, traits: Traits, p: Product) -> list[KernelConfig]:
        """Channels x blocks of filters of a tile of the weights' gradient."""
        best, sizes = products.convolution_depths(traits, p.x.block, p.y.blocks)
        if traits.quads == PAIRS_UNIT and p.x.block == BLOCK:
            best |= {"depth": BLOCK}
        if (wide := self._wide(traits, p)) > 1:
            deep = p.x.block * wide
            best |= {"depth": ceil_div(deep, ceil_div(deep, MOST_DEPTH))}
            sizes |= {"depth": [best["depth"]]}
        return products.worth_trying(best, **sizes)

    def _emit_weights(self, e: Emitter, p: Product, config: KernelConfig) -> Sums:
        assert p.gradient
        (images, height, width, *output), x, y = p.sizes, p.x, p.y
        depth, panels, wide = config["depth"], config["panels"], self._wide(e.traits, p)
        across, down = p.window.taps // wide * ceil_div(x.channels * wide, depth), y.blocks // panels
        work = min(across, _items(e, across * down) // down + 1), down
        image_rows = images * output[0]
        _, rows = e.split_rows(image_rows, across * down, 1 if e.traits.gpu else 4)
        rows = min(rows, max(1, LONGEST_SUM // output[1]))
        total, rows = start_sum(e, p.gradient, image_rows, ceil_div(image_rows, rows))
        _check(e, p, rows * output[1])
        checked = total.partials is None
        flags_name = f"{p.gradient.buffer.name} flags of {prod(work)} items"
        flags = e.tensor(flags_name, (1, prod(work)), Role.CHECK) if checked else None
        e.launch(
            "quantized_convolution.cl", "quantized_convolution_backward_weights", (*work, total.groups), *p.reads,
            total.access(p.add), images, height, width, x.channels, *output, rows, y.blocks, work[0], int(p.add),
            *([flags.write] if flags else []), checked=checked, whole=True, flops=p.flops, in_block=x.block, tile=1,
            panels=panels, depth=depth, **quad_macros(e.traits), **p.window.macros,
        )  # fmt: skip
        return replace(total, checked=checked), None


def _items(e: Emitter, count: int) -> int:
    """Work-items for `count` tiles: few with a unit, since some of the work is the same for neighbouring tiles."""
    return min(count, ITEMS * e.traits.compute_units) if e.traits.quads else count


TILES = unit_tiles(INTEGERS)


class QuantizedUnits(Family):
    """Convolutions as products by matrix units."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        problem = matrix_problem(p)
        if p.part == WEIGHTS:
            return TILES.for_weights(e.traits, problem)
        assert not p.adds, "the kernels of matrix units add no residuals"
        _check(e, p, p.window.taps * p.left.channels)
        return TILES.sorted(e.traits, problem)

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        group = unit_group(config)
        more: dict[str, Any] = {name: config[name] for name in UNIT_NAMES} | p.window.macros | p.macros
        more |= {"whole": True, "group": group, "flops": p.flops, "unit": e.traits.matrix_unit, "type": StoredType.INT8}
        name = f"quantized_units_{p.part}"
        if p.part == WEIGHTS:
            assert p.gradient
            problem = rows, _, channels = matrix_problem(p)
            total, span = start_sum(e, p.gradient, p.y.rows, TILES.split(e.traits, config, problem))
            _check(e, p, span)
            grid = products.matrix_grid(config, group, rows, channels, total.groups)
            e.launch(
                "quantized_units.cl", name, grid, *p.reads, total.access(p.add), *p.sizes, p.x.channels, p.y.channels,
                span, int(p.add), **more,
            )  # fmt: skip
            return total, None
        assert p.target
        tiles = products.products_of(p) * products.groups_of(config, products.data_rows(p), p.out.channels)
        groups = p.target.statistics.parts.rows if p.target.statistics else tiles
        e.launch(
            "quantized_units.cl", name, (groups * group,), *p.reads, *p.first, p.images, *p.source, *p.sink,
            p.left.channels, p.out.channels, *p.last, per_channel=_factors(p)[1].format.per_channel, **more,
        )  # fmt: skip
        return None


class QuantizedDepthwise(Family):
    """Depthwise convolutions."""

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        """Neighbouring outputs of a tile; with a unit, even ones, since two outputs of 3 x 3 taps share a quad."""
        if p.part != WEIGHTS:
            _check(e, p, p.window.taps)
        width = ceil_div(p.sink[1], p.strides[1])
        by_quads = next((size for size in QUAD_TILES if size >= width), QUAD_TILES[-1])
        best = {"tile": by_quads if e.traits.quads in QUAD_UNITS else products.depthwise_tile(e.traits, width)}
        return products.worth_trying(best, tile=products.up_to(products.DEPTHWISE_TILES, width))

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> Sums | None:
        if p.part == WEIGHTS:
            return self._emit_weights(e, p, config)
        assert p.target
        (height, width), stride, vector, kernel = p.sink, p.strides[1], e.traits.vector, _factors(p)[1]
        group = GROUP_GPU if e.traits.gpu else e.traits.group  # so many that a GPU's compute unit is busy with a few
        count = p.images * height * ceil_div(width, config["tile"] * stride) * p.x.blocks * (BLOCK // vector)
        if e.traits.quads in QUAD_UNITS:  # few with a unit, since each work-item makes quads of its taps first
            count = min(count, ITEMS * e.traits.compute_units)
        exact = largest_sum(p.window.taps, *self._formats(p)) <= EXACT
        e.launch(
            "quantized_depthwise.cl", f"quantized_depthwise_{p.part}", (p.target.items(e, count, group),), *p.reads,
            *p.first, *p.sizes, p.x.blocks, *p.last, group=group, whole=True, flops=p.flops,
            per_channel=kernel.format.per_channel, vector_width=vector, **self._unit(e.traits, floats=exact), **config,
            **p.window.macros, **p.macros,
        )  # fmt: skip
        return None

    def _formats(self, p: Product) -> list[NumberFormat]:
        return [factor.format for factor in _factors(p)]

    def _unit(self, traits: Traits, floats: bool) -> dict[str, Any]:
        """Macros of a unit that makes and multiplies quads, else whether float32 holds all sums."""
        return quad_macros(traits) if traits.quads in QUAD_UNITS else {"floats": floats}

    def _emit_weights(self, e: Emitter, p: Product, config: KernelConfig) -> Sums:
        assert p.gradient
        height, width = p.window.output
        image_rows = p.images * height
        _, rows = e.split_rows(image_rows, p.x.blocks, 1 if e.traits.gpu else 7)
        rows = min(rows, max(1, LONGEST_SUM // width))
        total, rows = start_sum(e, p.gradient, image_rows, ceil_div(image_rows, rows))
        _check(e, p, rows * width)
        e.launch(
            "quantized_depthwise.cl", "quantized_depthwise_backward_weights", (total.groups, p.x.blocks), *p.reads,
            total.access(p.add), *p.sizes, rows, total.groups, p.x.blocks, int(p.add), flops=p.flops,
            **self._unit(e.traits, floats=False), **config, **p.window.macros,
        )  # fmt: skip
        return total, None
