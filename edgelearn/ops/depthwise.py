"""DepthwiseConv2D: a convolution of each channel with its own kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.tuned.store import KernelConfig, Traits

from . import grouped, tiles
from .base import Arrays, Gradients, LinearOp, Weight, is_count
from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, emit_channel_sums, start_sum
from .formats import KernelView
from .target import Target
from .tensor import Shape, Tensor, ceil_div
from .window import Padding, Pair, Window, pair


@dataclass(frozen=True)
class DepthwiseConv2D(LinearOp):
    """Depthwise 2-D convolution, as in Keras.

    Arguments:
    - `kernel_size`: (height, width), or one number for both.
    - `strides`: (vertical, horizontal), or one number for both (default 1).
    - `padding`: "valid" (default), "same" as in Keras, or ((top, bottom), (left, right)).
    - `dilation_rate`: steps between the kernel's pixels (default 1).
    - `use_bias`: add a bias for each channel (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS (default "glorot_uniform").
    - `depth_multiplier`: outputs of each channel, which follow each other (default 1, by far the fastest).

    Weights: kernel (height, width, channels, depth_multiplier), as in Keras; bias (channels x depth_multiplier).
    """

    kernel_size: int | Pair
    strides: int | Pair = 1
    padding: Padding = "valid"
    dilation_rate: int | Pair = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"
    depth_multiplier: int = 1

    has_values = True
    masks_sums = True

    def window(self, shape: Shape) -> Window:
        return Window.of(shape, pair(self.kernel_size), pair(self.strides), self.padding, pair(self.dilation_rate))

    def output_shape(self, shape: Shape) -> Shape:
        if not is_count(self.depth_multiplier):
            raise ShapeError(f"depth_multiplier is 1 or more, not {self.depth_multiplier}.")
        return (*self.window(shape).output, shape[-1] * self.depth_multiplier)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        (ky, kx), filters = pair(self.kernel_size), shape[-1] * self.depth_multiplier
        kernel = (ky, kx, shape[-1], self.depth_multiplier)
        weights = {"kernel": Weight(kernel, self.kernel_initializer, decays=True, matrix=(ky * kx, filters))}
        if self.use_bias:
            weights["bias"] = Weight((filters,), "zeros")
        return weights

    def flops(self, shape: Shape) -> int:
        height, width, channels = self.output_shape(shape)
        return 2 * height * width * channels * self.window(shape).taps

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        padded = window.pad(x)
        taps = (padded[region][..., None] * kernel[ky, kx] for ky, kx, region in window.slices())
        y = reduce(np.add, taps).reshape(len(x), *self.output_shape(x.shape[1:]))
        return y + weights["bias"] if self.use_bias else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        padded = window.pad(x)
        dx, dkernel = np.zeros_like(padded), np.zeros_like(kernel)
        by_channel = dy.reshape(*dy.shape[:-1], -1, self.depth_multiplier)
        for ky, kx, region in window.slices():
            dx[region] += (by_channel * kernel[ky, kx]).sum(-1)
            dkernel[ky, kx] = (padded[region][..., None] * by_channel).sum((0, 1, 2))
        gradients = {"kernel": dkernel}
        if self.use_bias:
            gradients["bias"] = dy.sum((0, 1, 2))
        return [window.crop(dx)], gradients

    def emit_linear(self, e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
        window = self.window(x.shape[1:])
        if self.depth_multiplier > 1:
            grouped.emit_forward(e, window, x.channels, x, kernel, y, epilogue)
            return
        with e.choose(
            "depthwise_forward", window.problem(x.images, x.channels), _tiles(e.traits, y.width, window.strides[1])
        ) as choice:
            grid, rows, steps = _parts(e, y.images, y.height, y.width, y.blocks, choice["tile"], choice["items"])
            e.launch(
                "depthwise.cl", "depthwise_forward", grid, x.read, kernel.read, y.write, x.images, x.height, x.width,
                y.height, y.width, rows, steps, *epilogue.arguments,
                flops=self.flops(x.shape[1:]) * x.images, tile=choice["tile"], **window.macros,
                **epilogue.macros, **y.value_macros,
            )  # fmt: skip

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 0, scale)

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Tensor, dy: Tensor, target: Target) -> None:
        window = self.window(x.shape[1:])
        if self.depth_multiplier > 1:
            grouped.emit_backward_data(e, window, x.channels, x, prepared, dy, target)
            return
        stride = window.strides[1]
        candidates = _tiles(e.traits, ceil_div(x.width, stride), stride)
        with e.choose("depthwise_backward_data", window.problem(x.images, x.channels), candidates) as choice:
            tile = choice["tile"]
            grid, rows, steps = _parts(e, x.images, x.height, x.width, x.blocks, tile * stride, choice["items"])
            e.launch(
                "depthwise.cl", "depthwise_backward_data", grid, dy.read, prepared.read, x.images, x.height, x.width,
                dy.height, dy.width, rows, steps, *target.arguments,
                flops=self.flops(x.shape[1:]) * x.images, tile=tile, **window.macros,
                **target.macros,
            )  # fmt: skip

    def emit_backward_weights(
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[Sum, Sum | None]:
        window, least, image_rows = self.window(x.shape[1:]), 1 if e.traits.gpu else 7, x.images * dy.height
        if self.depth_multiplier > 1:
            dy_sum = emit_channel_sums(e, dy, sums, add) if sums else None
            return grouped.emit_backward_weights(e, window, x.channels, x, dy, gradient, add), dy_sum
        candidates = _tiles(e.traits, dy.width)
        with e.choose("depthwise_backward_weights", window.problem(x.images, x.channels), candidates) as choice:
            _, rows = e.split_rows(image_rows, x.blocks, least, choice["items"])
            members = e.traits.members
            groups = ceil_div(image_rows, members * min(rows, ceil_div(LONGEST_SUM, dy.width)))
            kernel_sum, rows = start_sum(e, gradient, image_rows, groups, members)
            dy_sum = start_sum(e, sums, image_rows, groups, members)[0] if sums else None
            targets = [s.target.update if add else s.target.write for s in (kernel_sum, dy_sum) if s]
            e.launch(
                "depthwise.cl", "depthwise_backward_weights", (kernel_sum.groups * members, x.blocks), x.read, dy.read,
                *targets, x.images, x.height, x.width, dy.height, dy.width, rows, x.blocks, int(add),
                flops=self.flops(x.shape[1:]) * x.images, tile=choice["tile"],
                sums=sums is not None, **window.macros, **dy.value_macros,
            )  # fmt: skip
            return kernel_sum, dy_sum


def _tiles(traits: Traits, width: int, stride: int = 1) -> list[KernelConfig]:
    """Tile sizes: neighbouring outputs, and work-items a compute unit."""
    best = {"tile": tiles.depthwise_tile(traits, width, stride), "items": 0}
    return tiles.worth_trying(best, tile=tiles.up_to(tiles.DEPTHWISE_TILES, width), items=tiles.items(traits))


def _parts(
    e: Emitter, images: int, height: int, width: int, blocks: int, tile: int, items: int
) -> tuple[tuple[int, int], int, int]:
    """(grid, rows a work-item, tiles of a row a work-item): single tiles on GPUs unless `items` is given, bands of rows
    on CPUs."""
    steps = 1 if e.traits.gpu else ceil_div(width, tile)
    columns = ceil_div(width, tile * steps)
    _, rows = e.split_rows(height, images * blocks * columns, least=1 if e.traits.gpu else 7, items=items)
    rows = 1 if e.traits.gpu and not items else rows
    return (images * ceil_div(height, rows) * columns, blocks), rows, steps
