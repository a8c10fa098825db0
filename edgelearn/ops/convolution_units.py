"""Convolutions and dense layers as products by matrix units: see kernels/convolution_units.cl."""

from __future__ import annotations

from edgelearn.device import WARPGROUPS, with_probe
from edgelearn.tuned.store import KernelConfig

from .emit import Emitter, Epilogue, Sum, emit_channel_sums, start_sum
from .formats import StoredType
from .matrix_tiles import (
    HALVES,
    HALVES_BY_WARPGROUPS,
    NAMES,
    TF32,
    TF32_BY_WARPGROUPS,
    Steps,
    group_size,
    split,
    tiles,
    weight_tiles,
)
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Window


def emit_forward(
    e: Emitter, window: Window, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue, flops: int
) -> None:
    together = _together(window, x)
    problem = y.rows, window.taps * x.channels, y.channels
    with _choose(e, "forward", window, problem, tiles(e.traits, *problem, _steps(e, "forward"))) as tile:
        images = y.rows // (window.output[0] * window.output[1])
        _launch(
            e, "forward", tile, window, x, (y.rows, y.channels), x.read, kernel.read, y.write, images, window.height,
            window.width, *window.output, x.channels, y.channels, *epilogue.arguments, flops=flops, together=together,
            **epilogue.macros,
        )  # fmt: skip


def emit_backward_data(e: Emitter, window: Window, prepared: Tensor, dy: Tensor, target: Target, flops: int) -> None:
    dx, strides = target.tensor, window.strides
    images = dx.rows // (window.height * window.width)
    rows = images * ceil_div(window.height, strides[0]) * ceil_div(window.width, strides[1])
    products = strides[0] * strides[1]
    problem = rows, ceil_div(window.taps * dy.channels, products), dx.channels
    with _choose(e, "backward_data", window, problem, tiles(e.traits, *problem, _steps(e, "backward_data"))) as tile:
        _launch(
            e, "backward_data", tile, window, dy, (rows, dx.channels, products), dy.read, prepared.read, images,
            *window.output, window.height, window.width, dy.channels, dx.channels, *target.arguments, flops=flops,
            **target.macros,
        )  # fmt: skip


def emit_backward_weights(
    e: Emitter, window: Window, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool, flops: int
) -> tuple[Sum, Sum | None]:
    together = _together(window, x)
    rows = ceil_div(window.taps, together) * x.blocks * BLOCK
    problem = rows, dy.rows, dy.channels
    steps = _steps(e, "backward_weights")
    with _choose(e, "backward_weights", window, problem, weight_tiles(e.traits, *problem, steps)) as tile:
        kernel_sum, span = start_sum(e, gradient, dy.rows, split(e.traits, tile, *problem))
        images = x.rows // (window.height * window.width)
        _launch(
            e, "backward_weights", tile, window, x, (rows, dy.channels, kernel_sum.groups), x.read, dy.read,
            kernel_sum.target.update if add else kernel_sum.target.write, images, window.height, window.width,
            *window.output, x.channels, dy.channels, span, int(add), flops=flops, together=together,
        )  # fmt: skip
    return kernel_sum, emit_channel_sums(e, dy, sums, add) if sums else None


def _together(window: Window, x: Tensor) -> int:
    """Taps of a step of the depth: several where 16 bytes hold all channels of `x`."""
    piece = 8 if x.is_halves else 4
    return BLOCK // piece if window.taps > 1 and x.channels <= piece else 1


def _steps(e: Emitter, name: str) -> Steps:
    """The tiles to choose from, with how long their steps take."""
    if _unit(e, name) in with_probe(WARPGROUPS):
        return HALVES_BY_WARPGROUPS if e.compute.stores_halves else TF32_BY_WARPGROUPS
    return HALVES if e.compute.stores_halves else TF32


def _has_depth_rows(e: Emitter, name: str) -> bool:
    """False for gradients of weights: their depth is pixels, and rows in memory are channels."""
    return e.compute.depth_rows and name != "backward_weights"


def _unit(e: Emitter, name: str) -> str:
    """Warpgroups take floats in rows along the depth alone."""
    suits = e.compute.stores_halves or _has_depth_rows(e, name)
    return (e.traits.unit(e.compute.type) if suits else e.traits.matrix_unit) or "PLAIN_MMA"


def _choose(e: Emitter, name: str, window: Window, problem: tuple[int, ...], candidates: list[KernelConfig]):
    return e.choose(f"units_{name}_{e.compute.type}", (*problem, *window.kernel), candidates)


def _launch(
    e: Emitter, name: str, tile: KernelConfig, window: Window, x: Tensor, size: tuple[int, ...], *arguments, flops: int,
    **macros,
) -> None:  # fmt: skip
    group, sizes = group_size(tile), {name: tile[name] for name in NAMES}
    grid = (ceil_div(size[0], tile["rows"]) * group, ceil_div(size[1], tile["columns"]), *size[2:])
    macros |= {"unit": _unit(e, name), "type": StoredType.of(x.dtype)} | x.value_macros
    if _has_depth_rows(e, name):
        macros["depth_rows"] = 1
    e.launch(
        "convolution_units.cl", f"convolution_units_{name}", grid, *arguments, whole=True, group=group, flops=flops,
        **sizes, **window.macros, **macros,
    )  # fmt: skip
