"""Convolutions of 8-bit integers as products by matrix units: see kernels/quantized_units.cl."""

from __future__ import annotations

from edgelearn.tuned.store import KernelConfig

from . import quantize
from .emit import Emitter, Epilogue, Sum, start_sum
from .formats import QuantizedTensor, StoredType, check_accumulators
from .matrix_tiles import INTEGERS, NAMES, group_size, split, tiles, weight_tiles
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window


def multiplies(e: Emitter, x: Tensor) -> bool:
    """True if a device's matrix units multiply the integers of `x`."""
    return bool(e.traits.matrix_unit) and x.block == BLOCK


def emit_forward(
    e: Emitter, window: Window, images: int, x: QuantizedTensor, kernel: QuantizedTensor, target: Target,
    epilogue: Epilogue, flops: int,
) -> None:  # fmt: skip
    channels, out = x.tensor.channels, target.tensor
    problem = out.rows, window.taps * channels, out.channels
    with _choose(e, "forward", window, problem) as tile:
        count = ceil_div(out.rows, tile["rows"]) * ceil_div(out.channels, tile["columns"])
        _launch(
            e, "forward", tile, window, (_groups(target, count),), *x.read, *kernel.read, *target.result_arguments(e),
            images, window.height, window.width, *window.output, channels, out.channels, *epilogue.arguments,
            flops=flops, per_channel=kernel.format.per_channel, **epilogue.macros, **target.result_macros(e),
        )  # fmt: skip


def emit_backward_data(
    e: Emitter, window: Window, images: int, prepared: QuantizedTensor, dy: QuantizedTensor, target: Target, flops: int
) -> None:
    dx, strides, out = target.tensor, window.strides, dy.tensor.channels
    rows = images * ceil_div(window.height, strides[0]) * ceil_div(window.width, strides[1])
    products = strides[0] * strides[1]
    with _choose(e, "backward_data", window, (rows, ceil_div(window.taps * out, products), dx.channels)) as tile:
        count = products * ceil_div(rows, tile["rows"]) * ceil_div(dx.channels, tile["columns"])
        _launch(
            e, "backward_data", tile, window, (_groups(target, count),), *dy.read, *prepared.read,
            *target.result_arguments(e), images, *window.output, window.height, window.width, out, dx.channels,
            *target.mask_arguments, flops=flops, per_channel=prepared.format.per_channel, **target.mask_macros,
            **target.result_macros(e),
        )  # fmt: skip


def emit_backward_weights(
    e: Emitter, window: Window, images: int, x: QuantizedTensor, dy: QuantizedTensor, gradient: Tensor,
    sums: Tensor | None, add: bool, flops: int,
) -> tuple[Sum, Sum | None]:  # fmt: skip
    given = dy.tensor
    rows = window.taps * x.tensor.blocks * BLOCK
    problem = rows, given.rows, given.channels
    dy_sum = quantize.emit_integer_channel_sums(e, dy, sums, add) if sums else None
    candidates = weight_tiles(e.traits, *problem, INTEGERS)
    with e.choose("quantized_units_backward_weights", (*problem, *window.kernel), candidates) as tile:
        kernel_sum, span = start_sum(e, gradient, given.rows, split(e.traits, tile, *problem))
        check_accumulators(e.layer, span, x.format, dy.format)
        grid = ceil_div(rows, tile["rows"]), ceil_div(given.channels, tile["columns"]), kernel_sum.groups
        _launch(
            e, "backward_weights", tile, window, grid, *x.read, *dy.read,
            kernel_sum.target.update if add else kernel_sum.target.write, images, window.height, window.width,
            *window.output, x.tensor.channels, given.channels, span, int(add), flops=flops,
        )  # fmt: skip
    return kernel_sum, dy_sum


def _choose(e: Emitter, name: str, window: Window, problem: tuple[int, int, int]):
    candidates = tiles(e.traits, *problem, INTEGERS)
    return e.choose(f"quantized_units_{name}", (*problem, *window.kernel), candidates)


def _groups(target: Target, tiles: int) -> int:
    """Work-groups that share `tiles`: one for each record of statistics, or one a tile."""
    return target.statistics.parts.rows if target.statistics else tiles


def _launch(
    e: Emitter, name: str, tile: KernelConfig, window: Window, groups: tuple[int, ...], *arguments, flops: int, **macros
) -> None:
    group, sizes = group_size(tile), {name: tile[name] for name in NAMES}
    e.launch(
        "quantized_units.cl", f"quantized_units_{name}", (groups[0] * group, *groups[1:]), *arguments, whole=True,
        group=group, flops=flops, unit=e.traits.matrix_unit, type=StoredType.INT8, **sizes, **window.macros, **macros,
    )  # fmt: skip
