"""Convolutions of 3 x 3 without strides from fewer products, on CPUs: see kernels/include/winograd.h.

A work-item transforms a chunk of tiles, each of 2 x 2 outputs, into a workspace of its own and multiplies there."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from edgelearn.device import KernelConfig, Traits

from . import products
from .emit import LONGEST_SUM, Emitter, GradientSum, start_sum
from .families import Family
from .formats import tensor_of
from .products import DATA, FORWARD, WEIGHTS, Product
from .tensor import BLOCK, Tensor, ceil_div
from .window import Pair, Window

POINTS = 16  # products of a tile for each pair of channels; the convolution itself has 9 for each of the 4 outputs
ITEMS = 2  # work-items of a compute unit
# Work beside the products, as measured (PoCL, AVX-512; compiled for AVX2, the same choices were the faster ones):
# transforms of tiles, as a factor, and transforms of the kernel, as a number of tiles
FORWARD_WORK, WEIGHTS_WORK = (1.1, 18), (1.3, 10)
NARROWEST = 8  # floats of a vector register: with fewer it wasn't measured, and plain C has no kernel of it
GAIN = 0.95  # of the time of the plain kernel, at most
ROOM = 2  # times what the layer itself holds: more workspace than that is not taken


def applies(e: Emitter, p: Product) -> bool:
    """True if these kernels can compute the convolution."""
    w, x = p.window, p.left
    same_rows = w.kernel == (3, 3) and w.strides == w.dilation == (1, 1)
    return same_rows and not e.traits.gpu and x.block == BLOCK and (e.compute.type, x.dtype) == ("fp32", "float32")


class Winograd(Family):
    """The family of these kernels. It goes first where it is thought faster, and needs no more memory than `ROOM`."""

    tails: ClassVar = {FORWARD: "moments"}

    def candidates(self, e: Emitter, p: Product) -> list[KernelConfig]:
        if not applies(e, p):
            return []
        if p.part != WEIGHTS:
            chunks, panels = ((14,), (2, 1)) if _wide(e.traits) else ((12, 24), (1,))
            return [{"chunk": chunk, "panels": n} for chunk in chunks for n in products.dividing(panels, p.out.blocks)]
        ins, outs = (products.dividing((4, 3, 2, 1), t.blocks)[0] for t in (p.x, p.y))
        chunks = (32, 16) if ins * outs > 4 else (16, 32)
        depth, panels = products.product_depth(e.traits), 2 - outs % 2 if _wide(e.traits) else 1
        sizes = {"depth": depth, "in_blocks": ins, "out_blocks": outs, "panels": panels}
        return [{"chunk": chunk, **sizes} for chunk in chunks]

    def rank(self, e: Emitter, p: Product) -> int:
        if not applies(e, p) or e.traits.vector_width < NARROWEST:
            return 1
        first, x, y = self.candidates(e, p)[0], p.left, p.y if p.part == WEIGHTS else p.out
        if p.part == WEIGHTS:
            work, nbytes = _work(WEIGHTS_WORK, _tiles(y)), ITEMS * e.traits.compute_units * _weights_bytes(first)
        else:
            chunks = ceil_div(_tiles(y), first["chunk"])
            work = _work(FORWARD_WORK, chunks * first["chunk"])
            nbytes = _items(e.traits, chunks) * _convolution_bytes(first, x) + _kernel_bytes(x, y)
        faster = work < GAIN * x.images * prod(_products(p.window))
        small = nbytes <= ROOM * (x.buffer.nbytes + y.buffer.nbytes + 9 * _kernel_bytes(x, y) // POINTS)
        return -1 if faster and small else 1

    def emit(self, e: Emitter, p: Product, config: KernelConfig) -> tuple[GradientSum, None] | None:
        (top, _), (left, _) = p.window.padding
        if p.part == WEIGHTS:
            return self._emit_weights(e, p, config, (top, left)), None
        x, y, kernel, turned = p.left, p.out, tensor_of(p.factors[1]), p.part == DATA
        pads = (2 - top, 2 - left) if turned else (top, left)  # of dy, convolved with the kernel turned by half
        u = _transformed(e, kernel, x.channels, flipped=turned)
        chunks = ceil_div(_tiles(y), config["chunk"])
        items = _items(e.traits, chunks)
        e.launch(
            "winograd.cl", f"winograd_{p.part}", (items,), x.read, u.read, *p.first,
            _workspace(e, items * _convolution_bytes(config, x)).write, x.images, *p.source, *p.sink, *pads, x.channels,
            y.blocks, *p.last, flops=_flops(_tiles(y), x, y), rows=14 if _wide(e.traits) else 6, **config, **p.macros,
        )  # fmt: skip
        if not (y.height % 2 or y.width % 2):  # tiles end where images do
            self.leave_tail(e, p, chunks, 4 * config["chunk"])
        return None

    def _emit_weights(self, e: Emitter, p: Product, tile: KernelConfig, pads: Pair) -> GradientSum:
        assert p.gradient
        x, dy, count = p.x, p.y, _tiles(p.y)
        parts = x.blocks // tile["in_blocks"] * (dy.blocks // tile["out_blocks"])
        groups, _ = e.split_rows(count, parts, tile["chunk"], ITEMS)
        total, span = start_sum(e, p.gradient, count, max(groups, ceil_div(count, LONGEST_SUM)))
        items = _items(e.traits, parts * total.groups)
        e.launch(
            "winograd_weights.cl", "winograd_backward_weights", (items,), *p.reads, total.access(p.add),
            _workspace(e, items * _weights_bytes(tile)).write, *p.sizes, *pads, x.channels, dy.blocks, total.groups,
            span, int(p.add), flops=_flops(count, x, dy), **tile,
        )  # fmt: skip
        return total


def _transformed(e: Emitter, kernel: Tensor, channels: int, flipped: bool) -> Tensor:
    """The kernel at the points of a tile. A temporary, which every micro-batch makes anew."""
    u = e.tensor("Winograd kernel", (POINTS, channels, kernel.channels))
    e.launch(
        "winograd_kernel.cl", "winograd_kernel", (channels, kernel.blocks), kernel.read, u.write, channels,
        kernel.blocks, flipped=flipped,
    )  # fmt: skip
    return u


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


def _wide(traits: Traits) -> bool:
    """True if a block of channels is one vector register, of which there are 32."""
    return traits.vector_width >= BLOCK


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
