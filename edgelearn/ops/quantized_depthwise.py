"""Launches of depthwise convolutions on 8-bit integers: see kernels/quantized_depthwise.cl."""

from __future__ import annotations

from typing import Any

from edgelearn.tuned.store import KernelConfig, Traits

from . import quantize, tiles
from .depthwise import DepthwiseConv2D
from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, start_sum
from .formats import NumberFormat, QuantizedTensor, check_accumulators, largest_sum
from .quantize import emit_integer_channel_sums
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div

UNITS = ("VNNI512", "AVX512BW")  # which shuffle four pixels of 16 channels at a time
QUAD_TILES = (1, 2, 4, 8)
ITEMS = 16  # work-items of a compute unit
GROUP_GPU = 128
EXACT = 1 << 24  # the most that float32 counts to by ones


def emit_forward(
    e: Emitter,
    op: DepthwiseConv2D,
    x: QuantizedTensor,
    kernel: QuantizedTensor,
    target: Target,
    epilogue: Epilogue,
) -> None:
    """target = activation((x * kernel) * scale + shift)"""
    value, out, vector, group = x.tensor, target.tensor, e.traits.vector, _group(e)
    window = op.window(value.shape[1:])
    check_accumulators(e.layer, window.taps, x.format, kernel.format)
    problem = window.problem(value.images, value.channels)
    with e.choose("quantized_depthwise_forward", problem, _tiles(e.traits, out.width)) as choice:
        count = out.images * out.height * ceil_div(out.width, choice["tile"]) * out.blocks * (BLOCK // vector)
        e.launch(
            "quantized_depthwise.cl", "quantized_depthwise_forward", (target.items(e, _items(e, count), group),),
            *x.read, *kernel.read, *target.result_arguments(e), value.images, value.height, value.width, out.height,
            out.width, out.blocks, *epilogue.arguments,
            group=group, whole=True, flops=op.flops(value.shape[1:]) * value.images,
            per_channel=kernel.format.per_channel, vector_width=vector,
            **_products(e.traits, window.taps, x.format, kernel.format), **choice, **window.macros, **epilogue.macros,
            **target.result_macros(e),
        )  # fmt: skip


def emit_backward_data(
    e: Emitter,
    op: DepthwiseConv2D,
    x: Tensor,
    prepared: QuantizedTensor,
    dy: QuantizedTensor,
    target: Target,
) -> None:
    """The gradient of the input, which is shaped like `x`."""
    given, window, vector, group = dy.tensor, op.window(x.shape[1:]), e.traits.vector, _group(e)
    check_accumulators(e.layer, window.taps, dy.format, prepared.format)
    stride, problem = window.strides[1], window.problem(x.images, x.channels)
    with e.choose("quantized_depthwise_backward_data", problem, _tiles(e.traits, ceil_div(x.width, stride))) as choice:
        count = x.images * x.height * ceil_div(x.width, choice["tile"] * stride) * x.blocks * (BLOCK // vector)
        e.launch(
            "quantized_depthwise.cl", "quantized_depthwise_backward_data", (target.items(e, _items(e, count), group),),
            *dy.read, *prepared.read, *target.result_arguments(e), x.images, x.height, x.width, given.height,
            given.width, x.blocks, *target.mask_arguments,
            group=group, whole=True, flops=op.flops(x.shape[1:]) * x.images, per_channel=prepared.format.per_channel,
            vector_width=vector, **_products(e.traits, window.taps, dy.format, prepared.format), **choice,
            **window.macros, **target.mask_macros, **target.result_macros(e),
        )  # fmt: skip


def emit_backward_weights(
    e: Emitter,
    op: DepthwiseConv2D,
    x: QuantizedTensor,
    dy: QuantizedTensor,
    gradient: Tensor,
    sums: Tensor | None,
    add: bool,
) -> tuple[Sum, Sum | None]:
    """As LinearOp.emit_backward_weights; sums of integers are added to floats."""
    value, given, window = x.tensor, dy.tensor, op.window(x.tensor.shape[1:])
    image_rows, problem = value.images * given.height, window.problem(value.images, value.channels)
    dy_sum = emit_integer_channel_sums(e, dy, sums, add) if sums else None
    with e.choose("quantized_depthwise_backward_weights", problem, _tiles(e.traits, given.width)) as choice:
        _, rows = e.split_rows(image_rows, value.blocks, 1 if e.traits.gpu else 7)
        rows = min(rows, max(1, LONGEST_SUM // given.width))
        kernel_sum, rows = start_sum(e, gradient, image_rows, ceil_div(image_rows, rows))
        check_accumulators(e.layer, rows * given.width, x.format, dy.format)
        e.launch(
            "quantized_depthwise.cl", "quantized_depthwise_backward_weights", (kernel_sum.groups, value.blocks),
            *x.read, *dy.read, kernel_sum.target.update if add else kernel_sum.target.write,
            value.images, value.height, value.width, given.height, given.width, rows, kernel_sum.groups, value.blocks,
            int(add), flops=op.flops(value.shape[1:]) * value.images, **_unit(e.traits, {"floats": False}), **choice,
            **window.macros,
        )  # fmt: skip
        return kernel_sum, dy_sum


def _items(e: Emitter, count: int) -> int:
    """Work-items for `count` tiles: few with a unit, since each makes quads of its taps first."""
    return min(count, ITEMS * e.traits.compute_units) if e.traits.quads in UNITS else count


def _products(traits: Traits, terms: int, *formats: NumberFormat) -> dict[str, Any]:
    """Macros that say how sums of `terms` products are computed."""
    return _unit(traits, {"floats": _exact(terms, *formats)})


def _unit(traits: Traits, otherwise: dict[str, Any]) -> dict[str, Any]:
    """Macros of a unit that makes and multiplies quads, or these `otherwise`."""
    return quantize.quad_macros(traits) if traits.quads in UNITS else otherwise


def _group(e: Emitter) -> int:
    """Work-items of a work-group: so many that a GPU's compute unit is busy with a few."""
    return GROUP_GPU if e.traits.gpu else e.traits.group


def _exact(terms: int, *formats: NumberFormat) -> bool:
    """True if float32 holds every sum of `terms` products of two formats' integers, less their zero points."""
    return largest_sum(terms, *formats) <= EXACT


def _tiles(traits: Traits, width: int) -> list[KernelConfig]:
    """Neighbouring outputs of a tile; with a unit, even ones, since two outputs of 3 x 3 taps share a quad."""
    by_quads = next((size for size in QUAD_TILES if size >= width), QUAD_TILES[-1])
    best = {"tile": by_quads if traits.quads in UNITS else tiles.depthwise_tile(traits, width)}
    return tiles.worth_trying(best, tile=tiles.up_to(tiles.DEPTHWISE_TILES, width))
