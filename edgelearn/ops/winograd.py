"""Convolutions of 3 x 3 without strides from fewer products, on CPUs: see kernels/include/winograd.h.

A work-item transforms a chunk of tiles, each of 2 x 2 outputs, into a workspace of its own and multiplies there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from edgelearn.launch import Access
from edgelearn.tuned.store import KernelConfig, Traits

from . import tiles
from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, start_sum
from .target import Target
from .tensor import BLOCK, Tensor, ceil_div
from .window import Pair, Window

POINTS = 16  # products of a tile for each pair of channels; the convolution itself has 9 for each of the 4 outputs
ITEMS = 2  # work-items of a compute unit
# Work beside the products, as measured (PoCL, AVX-512): transforms of tiles, as a factor, and transforms of the kernel,
# as a number of tiles
FORWARD, WEIGHTS = (1.1, 18), (1.3, 10)
GAIN = 0.95  # of the time of the plain kernel, at most
ROOM = 2  # times what the layer itself holds: more workspace than that is not taken


def applies(e: Emitter, window: Window, x: Tensor) -> bool:
    """True if these kernels can compute the convolution of `x`."""
    same_rows = window.kernel == (3, 3) and window.strides == window.dilation == (1, 1)
    return same_rows and not e.traits.gpu and x.block == BLOCK and (e.compute.type, x.dtype) == ("fp32", "float32")


def with_tiles(traits: Traits, window: Window, x: Tensor, y: Tensor, plain: list[KernelConfig]) -> list[KernelConfig]:
    """`plain` candidates and these kernels', for outputs `y` or gradients of inputs, best guess first."""
    wide = traits.vector_width >= 16
    chunk, panels = (14, (2, 1)) if wide else (6, (1,))
    found: list[KernelConfig] = [{"chunk": chunk, "panels": count} for count in tiles.dividing(panels, y.blocks)]
    chunks = ceil_div(_tiles(y), chunk)
    nbytes = _items(traits, chunks) * _convolution_bytes(found[0], x) + _kernel_bytes(x, y)
    return _sorted(found, plain, traits, window, x, y, _work(FORWARD, chunks * chunk), nbytes)


def with_weight_tiles(
    traits: Traits, window: Window, x: Tensor, dy: Tensor, plain: list[KernelConfig]
) -> list[KernelConfig]:
    """`plain` candidates and these kernels', for the gradient of the weights, best guess first."""
    ins, outs = (tiles.dividing((4, 3, 2, 1), t.blocks)[0] for t in (x, dy))
    chunks = (32, 16) if ins * outs > 4 else (16, 32)
    sizes = {"depth": tiles.product_depth(traits), "in_blocks": ins, "out_blocks": outs, "panels": 2 - outs % 2}
    found = [{"chunk": chunk, **sizes} for chunk in chunks]
    nbytes = ITEMS * traits.compute_units * _weights_bytes(found[0])
    return _sorted(found, plain, traits, window, x, dy, _work(WEIGHTS, _tiles(dy)), nbytes)


def emit_forward(
    e: Emitter, tile: KernelConfig, window: Window, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue
) -> None:
    (top, _), (left, _) = window.padding
    u = _transformed(e, kernel, x.channels, flipped=False)
    tensors = [x.read, u.read, y.write]
    _convolve(e, "winograd_forward", tile, (top, left), x, y, tensors, epilogue.arguments, epilogue.macros)


def emit_backward_data(
    e: Emitter, tile: KernelConfig, window: Window, transposed: Tensor, dy: Tensor, target: Target
) -> None:
    """Emit the gradient of the input: dy convolved with the kernel turned by half."""
    (top, _), (left, _) = window.padding
    u = _transformed(e, transposed, dy.channels, flipped=True)
    tensors, pads = [dy.read, u.read], (2 - top, 2 - left)
    _convolve(e, "winograd_backward_data", tile, pads, dy, target.tensor, tensors, target.arguments, target.macros)


def emit_backward_weights(
    e: Emitter, tile: KernelConfig, window: Window, x: Tensor, dy: Tensor, gradient: Tensor, add: bool
) -> Sum:
    (top, _), (left, _) = window.padding
    count, parts = _tiles(dy), x.blocks // tile["in_blocks"] * (dy.blocks // tile["out_blocks"])
    groups, _ = e.split_rows(count, parts, tile["chunk"], ITEMS)
    kernel_sum, span = start_sum(e, gradient, count, max(groups, ceil_div(count, LONGEST_SUM)))
    items = _items(e.traits, parts * kernel_sum.groups)
    e.launch(
        "winograd_weights.cl", "winograd_backward_weights", (items,),
        x.read, dy.read, kernel_sum.target.update if add else kernel_sum.target.write,
        _workspace(e, items * _weights_bytes(tile)).write,
        x.images, x.height, x.width, dy.height, dy.width, top, left, x.channels, dy.blocks, kernel_sum.groups, span,
        int(add), flops=_flops(count, x, dy), **tile,
    )  # fmt: skip
    return kernel_sum


def _convolve(
    e: Emitter,
    name: str,
    tile: KernelConfig,
    pads: Pair,
    x: Tensor,
    y: Tensor,
    tensors: Sequence[Access],
    arguments: Sequence[Access],
    macros: dict[str, Any],
) -> None:
    items = _items(e.traits, ceil_div(_tiles(y), tile["chunk"]))
    e.launch(
        "winograd.cl", name, (items,), *tensors, _workspace(e, items * _convolution_bytes(tile, x)).write,
        x.images, x.height, x.width, y.height, y.width, *pads, x.channels, y.blocks, *arguments,
        flops=_flops(_tiles(y), x, y), **tile, **macros,
    )  # fmt: skip


def _transformed(e: Emitter, kernel: Tensor, channels: int, flipped: bool) -> Tensor:
    """The kernel at the points of a tile. A temporary, which every micro-batch makes anew."""
    u = e.tensor("Winograd kernel", (POINTS, channels, kernel.channels))
    e.launch(
        "winograd_kernel.cl", "winograd_kernel", (channels, kernel.blocks), kernel.read, u.write, channels,
        kernel.blocks, flipped=flipped,
    )  # fmt: skip
    return u


def _sorted(
    found: list[KernelConfig],
    plain: list[KernelConfig],
    traits: Traits,
    window: Window,
    x: Tensor,
    y: Tensor,
    work: float,
    nbytes: int,
) -> list[KernelConfig]:
    """Candidates with `found` first if they are thought faster, and need no more than `ROOM`."""
    faster = work < GAIN * x.images * prod(_products(window))
    small = nbytes <= ROOM * (x.buffer.nbytes + y.buffer.nbytes + 9 * _kernel_bytes(x, y) // POINTS)
    return [*found, *plain] if faster and small and traits.vector_width >= 16 else [*plain, *found]


def _work(beside: tuple[float, int], count: int) -> float:
    factor, kernel_tiles = beside
    return POINTS * factor * (count + kernel_tiles)


def _products(window: Window) -> list[int]:
    """Products of the plain kernel for each pair of channels along y and x: it skips those with padding."""
    axes = zip((window.height, window.width), window.output, window.padding, strict=True)
    return [
        sum(max(0, min(out, size + before - tap) - max(0, before - tap)) for tap in range(3))
        for size, out, (before, _) in axes
    ]


def _tiles(y: Tensor) -> int:
    return y.images * ceil_div(y.height, 2) * ceil_div(y.width, 2)


def _flops(count: int, x: Tensor, y: Tensor) -> int:
    return 2 * POINTS * count * x.channels * y.channels


def _items(traits: Traits, parts: int) -> int:
    return min(ITEMS * traits.compute_units, parts)


def _convolution_bytes(tile: KernelConfig, x: Tensor) -> int:
    return 4 * POINTS * BLOCK * tile["chunk"] * (x.blocks + tile["panels"])


def _weights_bytes(tile: KernelConfig) -> int:
    ins, outs = tile["in_blocks"], tile["out_blocks"]
    return 4 * POINTS * BLOCK * (tile["chunk"] * (ins + outs) + ins * outs * BLOCK)


def _kernel_bytes(x: Tensor, y: Tensor) -> int:
    return 4 * POINTS * x.channels * y.blocks * BLOCK


def _workspace(e: Emitter, nbytes: int) -> Tensor:
    return e.tensor("Winograd workspace", (nbytes // (4 * BLOCK), BLOCK))
