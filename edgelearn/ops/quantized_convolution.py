"""Launches of convolutions, pointwise ones and dense layers on 8-bit integers: see kernels/quantized_convolution.cl."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from edgelearn.launch import Role
from edgelearn.tuned.store import KernelConfig, Traits

from . import quantize, quantized_units, tiles
from .convolution import Conv2D
from .dense import Dense
from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, start_sum
from .formats import QuantizedTensor, check_accumulators
from .quantize import Residual
from .target import Target
from .tensor import Tensor, ceil_div
from .window import Window

QUAD = 4  # products that a unit adds up
LONGEST_ROW = 256  # pixels in a row of their own
MOST_DEPTH = 12  # channels of several taps in a tile of the weights' gradient
MOST_SUMS = 28  # vectors of sums of a tile
ITEMS = 16  # work-items of a compute unit


@dataclass(frozen=True)
class Geometry:
    """A convolution over `images` of the window's size. Pointwise ones may have their rows in images of any size."""

    images: int
    window: Window

    @classmethod
    def of(cls, op: Conv2D | Dense, x: Tensor, height: int, width: int) -> Geometry:
        """Pointwise: one image of `height` x `width` rows."""
        if isinstance(op, Dense):
            return cls(1, Window.pointwise(height, width))
        window = op.window(x.shape[1:])
        if x.block == 16 and window.is_pointwise:
            return cls(1, Window.pointwise(height, width))
        return cls(x.images, window)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.images, self.window.height, self.window.width

    def problem(self, channels: int, filters: int) -> tuple[int, ...]:
        return *self.window.problem(self.images, channels), filters


def emit_forward(
    e: Emitter,
    op: Conv2D | Dense,
    x: QuantizedTensor,
    kernel: QuantizedTensor,
    target: Target,
    epilogue: Epilogue,
    residual: Residual | None = None,
) -> None:
    """target = activation((x * kernel) * scale + shift), or its sum with a `residual` where `adds_residuals`."""
    geometry = Geometry.of(op, x.tensor, 1, x.tensor.rows)
    window, (out_height, out_width) = geometry.window, geometry.window.output
    channels, out = x.tensor.channels, target.tensor
    check_accumulators(e.layer, window.taps * channels, x.format, kernel.format)
    flops = 2 * out.rows * out.channels * window.taps * channels
    if quantized_units.multiplies(e, x.tensor):
        assert residual is None, "the kernels of matrix units add no residuals"
        quantized_units.emit_forward(e, window, geometry.images, x, kernel, target, epilogue, flops)
        return
    candidates = _tiles(e.traits, out_width, out.blocks)
    with e.choose("quantized_convolution_forward", geometry.problem(channels, out.channels), candidates) as choice:
        count = geometry.images * out_height * ceil_div(out_width, choice["tile"]) * (out.blocks // choice["panels"])
        e.launch(
            "quantized_convolution.cl", "quantized_convolution_forward", (target.items(e, _items(e, count)),),
            *x.read, *kernel.read, *target.result_arguments(e), *geometry.sizes, channels, out_height, out_width,
            out.blocks, *epilogue.arguments, *(residual.arguments if residual else []),
            whole=True, flops=flops, in_block=x.tensor.block, depth=1,
            per_channel=kernel.format.per_channel, **quantize.quad_macros(e.traits), **choice, **window.macros,
            **epilogue.macros, **(residual.macros if residual else {}), **target.result_macros(e),
        )  # fmt: skip


def adds_residuals(e: Emitter, x: QuantizedTensor) -> bool:
    """True if the kernels that multiply `x` can add to their results."""
    return not quantized_units.multiplies(e, x.tensor)


def emit_backward_data(
    e: Emitter,
    op: Conv2D | Dense,
    x: Tensor,
    prepared: QuantizedTensor,
    dy: QuantizedTensor,
    target: Target,
) -> None:
    """The gradient of the input, which is shaped like `x`, from the transposed kernel."""
    geometry = Geometry.of(op, x, 1, x.rows)
    window, (out_height, out_width) = geometry.window, geometry.window.output
    stride, out = window.strides[1], dy.tensor.channels
    check_accumulators(e.layer, window.taps * out, dy.format, prepared.format)
    flops = 2 * dy.tensor.rows * out * window.taps * x.channels
    if quantized_units.multiplies(e, x):
        quantized_units.emit_backward_data(e, window, geometry.images, prepared, dy, target, flops)
        return
    candidates = _tiles(e.traits, ceil_div(window.width, stride), x.blocks)
    with e.choose("quantized_convolution_backward_data", geometry.problem(x.channels, out), candidates) as choice:
        across = stride * ceil_div(window.width, choice["tile"] * stride)
        count = geometry.images * window.height * across * (x.blocks // choice["panels"])
        e.launch(
            "quantized_convolution.cl", "quantized_convolution_backward_data", (target.items(e, _items(e, count)),),
            *dy.read, *prepared.read, *target.result_arguments(e), *geometry.sizes, out, out_height, out_width,
            x.blocks, *target.mask_arguments,
            whole=True, flops=flops, in_block=16, depth=1,
            per_channel=prepared.format.per_channel, **quantize.quad_macros(e.traits), **choice, **window.macros,
            **target.mask_macros, **target.result_macros(e),
        )  # fmt: skip


def emit_backward_weights(
    e: Emitter,
    op: Conv2D | Dense,
    x: QuantizedTensor,
    dy: QuantizedTensor,
    gradient: Tensor,
    sums: Tensor | None,
    add: bool,
) -> tuple[Sum, Sum | None]:
    """As LinearOp.emit_backward_weights; sums of integers are added to floats."""
    value, given = x.tensor, dy.tensor
    width = _row_of_quads(value) if e.traits.quads else value.width
    geometry = Geometry.of(op, value, value.rows // width, width)
    window, (out_height, out_width) = geometry.window, geometry.window.output
    flops = 2 * given.rows * given.channels * window.taps * value.channels
    if quantized_units.multiplies(e, value):
        return quantized_units.emit_backward_weights(e, window, geometry.images, x, dy, gradient, sums, add, flops)
    wide = _wide_taps(e.traits, value, window)
    candidates = _depths(e.traits, value.block, given.blocks, wide)
    problem = geometry.problem(value.channels, given.channels)
    dy_sum = quantize.emit_integer_channel_sums(e, dy, sums, add) if sums else None
    with e.choose("quantized_convolution_backward_weights", problem, candidates) as choice:
        depth, panels = choice["depth"], choice["panels"]
        across, down = window.taps // wide * ceil_div(value.channels * wide, depth), given.blocks // panels
        work = min(across, _items(e, across * down) // down + 1), down
        image_rows = geometry.images * out_height
        _, rows = e.split_rows(image_rows, across * down, 1 if e.traits.gpu else 4)
        rows = min(rows, max(1, LONGEST_SUM // out_width))
        kernel_sum, rows = start_sum(e, gradient, image_rows, ceil_div(image_rows, rows))
        check_accumulators(e.layer, rows * out_width, x.format, dy.format)
        checked = kernel_sum.partials is None
        flags_name = f"{gradient.buffer.name} flags of {prod(work)} items"
        flags = e.tensor(flags_name, (1, prod(work)), Role.CHECK) if checked else None
        e.launch(
            "quantized_convolution.cl", "quantized_convolution_backward_weights", (*work, kernel_sum.groups),
            *x.read, *dy.read, kernel_sum.target.update if add else kernel_sum.target.write,
            *geometry.sizes, value.channels, out_height, out_width, rows, given.blocks, work[0], int(add),
            *([flags.write] if flags else []), checked=checked, whole=True, flops=flops,
            in_block=value.block, tile=1, panels=panels, depth=depth, **quantize.quad_macros(e.traits),
            **window.macros,
        )  # fmt: skip
        return replace(kernel_sum, checked=checked), dy_sum


def _items(e: Emitter, count: int) -> int:
    """Work-items for `count` tiles: few with a unit, since some of the work is the same for neighbouring tiles."""
    return min(count, ITEMS * e.traits.compute_units) if e.traits.quads else count


def _tiles(traits: Traits, width: int, blocks: int) -> list[KernelConfig]:
    """Neighbouring outputs x blocks of channels of a tile; with a unit, no more sums than registers hold."""
    choices = tiles.of_convolution(traits, width, blocks)
    best = choices[0]
    if traits.quads and best["tile"] * best["panels"] > MOST_SUMS:
        best = best | {"tile": max(tiles.up_to(tiles.ROW_TILES, MOST_SUMS // best["panels"]))}
    return [best, *(choice for choice in choices if choice != best)]


def _row_of_quads(x: Tensor) -> int:
    """Pixels that a pointwise op takes as a row: so many rows of an image that quads fill them, if that divides all."""
    for width in (x.width, 2 * x.width, 4 * x.width):
        if width % QUAD == 0 and x.rows % width == 0:
            return width
    return x.rows if x.rows < LONGEST_ROW else x.width


def _wide_taps(traits: Traits, x: Tensor, window: Window) -> int:
    """Taps that count as one with the channels of all: WIDE in kernels/quantized_convolution.cl."""
    return window.kernel[1] if traits.quads and x.block < 16 and window.dilation[1] == 1 else 1


def _depths(traits: Traits, in_block: int, blocks: int, wide: int) -> list[KernelConfig]:
    """Channels x blocks of filters of a tile of the weights' gradient."""
    if wide > 1:
        deep = in_block * wide
        best = {"depth": ceil_div(deep, ceil_div(deep, MOST_DEPTH)), "panels": tiles.panels(traits, blocks)}
        return tiles.worth_trying(best, depth=[best["depth"]], panels=tiles.dividing(tiles.PANELS, blocks))
    depth = min(in_block, 2 if traits.gpu else 8)
    best = {"depth": depth if in_block % depth == 0 else in_block, "panels": tiles.panels(traits, blocks)}
    depths, panels = tiles.dividing(tiles.DEPTHS, in_block), tiles.dividing(tiles.PANELS, blocks)
    return tiles.worth_trying(best, depth=depths, panels=panels)
