"""Convolutions with any kernel, stride, padding, dilation and number of groups: Conv2D; DepthwiseConv2D, of each
channel with its own kernel; and Conv2DTranspose, the gradient of a convolution to its input as a layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In, Role

from .base import LinearOp, Op, Weight, is_count
from .emit import LONGEST_SUM, Emitter, Epilogue, GradientSum, emit_channel_sums, start_sum
from .formats import KernelView
from .products import Geometry
from .quantize import Residual
from .target import Target, emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div
from .window import Padding, Pair, Window, pair


class Sliding(LinearOp):
    """Base of convolutions: their kernel slides over an image."""

    kernel_size: int | Pair
    strides: int | Pair
    padding: Padding
    dilation_rate: int | Pair

    def window(self, shape: Shape) -> Window:
        """The window over an image of `shape`."""
        return Window.of(shape, pair(self.kernel_size), pair(self.strides), self.padding, pair(self.dilation_rate))


def check_groups(channels: int, filters: int, groups: int) -> None:
    """Raises ShapeError unless there are filters, and `groups` divides channels and filters."""
    if not is_count(filters):
        raise ShapeError(f"A convolution has 1 filter or more, not {filters}.")
    if not is_count(groups) or channels % groups or filters % groups:
        raise ShapeError(f"groups={groups} must divide both the {channels} input channels and the {filters} filters.")


def by_group(x: np.ndarray, groups: int) -> np.ndarray:
    """The last axis as (groups, values of a group)."""
    return x.reshape(*x.shape[:-1], groups, -1)


@dataclass(frozen=True)
class Conv2D(Sliding):
    """2-D convolution (cross-correlation) over (height, width, channels), as in Keras.

    Arguments:
    - `filters`: output channels.
    - `kernel_size`, `strides`, `dilation_rate`: int or (y, x).
    - `padding`: "same", "valid" or ((top, bottom), (left, right)).
    - `groups`: divides input channels and filters (default 1).
    - `use_bias`: add a bias to each filter (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS.

    Kernel: (ky, kx, channels / groups, filters). Raises ShapeError if arguments and input don't fit.
    """

    filters: int
    kernel_size: int | Pair
    strides: int | Pair = 1
    padding: Padding = "valid"
    dilation_rate: int | Pair = 1
    groups: int = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"

    has_values = True
    masks_sums = True

    def output_shape(self, shape: Shape) -> Shape:
        window = self.window(shape)
        check_groups(shape[-1], self.filters, self.groups)
        return (*window.output, self.filters)

    def kernel(self, shape: Shape) -> Weight:
        size = (*pair(self.kernel_size), shape[-1] // self.groups, self.filters)
        return Weight(size, self.kernel_initializer, decays=True)

    def flops(self, shape: Shape) -> int:
        height, width, filters = self.output_shape(shape)
        return 2 * height * width * filters * self.window(shape).taps * (shape[-1] // self.groups)

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        window = self.window(x.shape[1:])
        padded, kernel = by_group(window.pad(x), self.groups), by_group(kernel, self.groups)
        taps = (np.einsum("nhwgi,igo->nhwgo", padded[at], kernel[ky, kx]) for ky, kx, at in window.slices())
        y = reduce(np.add, taps)
        return y.reshape(*y.shape[:3], -1)

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        window = self.window(x.shape[1:])
        padded, dy, grouped = (by_group(values, self.groups) for values in (window.pad(x), dy, kernel))
        dx, dkernel = np.zeros_like(padded), np.zeros_like(grouped)
        for ky, kx, at in window.slices():
            dx[at] += np.einsum("nhwgo,igo->nhwgi", dy, grouped[ky, kx])
            dkernel[ky, kx] = np.einsum("nhwgi,nhwgo->igo", padded[at], dy)
        return window.crop(dx.reshape(*dx.shape[:3], -1)), dkernel.reshape(kernel.shape)

    def geometry(self, x: Tensor) -> Geometry:
        kind = "grouped" if self.groups > 1 else "convolution"
        return Geometry(kind, x.images, self.window(x.shape[1:]), self.groups)

    @property
    def has_integer_kernels(self) -> bool:
        return self.groups == 1

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 0 if self.groups > 1 else self.window(x.shape[1:]).taps, scale)


@dataclass(frozen=True)
class BySquares:
    """A convolution in steps of two over a network's input, computed in steps of one over its squares of 2 x 2 pixels,
    whose channels lie side by side. Matrix units read 16 channels of a pixel at a time: of an image in colours 3 are
    used so, but 12 of a square, and 7 x 7 pixels are 4 x 4 squares.

    Arguments:
    - `op`: the convolution over squares.
    - `shape`: of the input as squares.
    - `rows`: by row of its kernel, that of the original kernel, -1 for zeros.
    - `height`, `width`: of the input.
    """

    op: Conv2D
    shape: Shape
    rows: tuple[int, ...]
    height: int
    width: int

    @classmethod
    def of(cls, op: Op, shape: Shape) -> BySquares | None:
        """`op` for an input of `shape`; None for other layers, and where squares have too many channels."""
        if type(op) is not Conv2D or op.groups > 1 or 4 * shape[-1] > BLOCK:
            return None
        window = op.window(shape)
        if window.strides != (2, 2) or window.dilation != (1, 1) or window.taps == 1:
            return None
        axes = [_Axis(*axis) for axis in zip(shape[:2], window.kernel, window.padding, window.output, strict=True)]
        padding = tuple((axis.before, axis.after) for axis in axes)
        if min(map(min, padding)) < 0:
            return None
        pixels = [
            (ky, kx) if ky is not None and kx is not None else None
            for square in itertools.product(*(range(axis.taps) for axis in axes))
            for ky, kx in itertools.product(*(axis.of_square(at) for axis, at in zip(axes, square, strict=True)))
        ]
        channels = shape[-1]
        rows = [
            (pixel[0] * window.kernel[1] + pixel[1]) * channels + channel if pixel else -1
            for pixel in pixels
            for channel in range(channels)
        ]
        by_squares = replace(op, kernel_size=tuple(axis.taps for axis in axes), strides=1, padding=padding)
        return cls(by_squares, (*(axis.squares for axis in axes), 4 * channels), tuple(rows), *shape[:2])

    def emit_input(self, e: Emitter, x: Tensor, dtype: str) -> Tensor:
        """The input as squares, of `dtype`."""
        y = e.tensor("squares", (x.images, *self.shape), dtype=dtype)
        groups, count = e.bands(y.rows, y.blocks, 64, several=True)
        e.launch(
            "space_to_depth.cl", "squares_of_pixels", (groups, y.blocks), x.read, y.rows, count, *self.shape[:2],
            self.height, self.width, y.write, pixel_channels=x.channels, **y.value_macros,
        )  # fmt: skip
        return y

    def emit_kernel(self, e: Emitter, kernel: Tensor) -> Tensor:
        """The kernel over squares, prepared once a mini-batch."""
        size = pair(self.op.kernel_size)
        y = e.tensor("kernel over squares", (*size, self.shape[-1], kernel.channels), Role.PREPARED)
        self._emit_rows(e, kernel, y, self.rows)
        return y

    def emit_gradient(self, e: Emitter, gradient: Tensor, target: Tensor) -> None:
        """Emit the gradient of the kernel from that of the one over squares."""
        places = {row: place for place, row in enumerate(self.rows)}
        self._emit_rows(e, gradient, target, [places[row] for row in range(target.rows)])

    def _emit_rows(self, e: Emitter, x: Tensor, y: Tensor, sources: Sequence[int]) -> None:
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "space_to_depth.cl", "move_rows", (groups, y.blocks), x.read, In(e.table((tuple(sources),))), y.rows, count,
            x.rows, y.write,
        )  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis of `BySquares`: pixels of the input, taps of the kernel, pixels of padding, and of the output. A tap q
    pixels from the output's own place reads square q // 2, and in it pixel q % 2."""

    size: int
    kernel: int
    padding: Pair
    output: int

    @property
    def squares(self) -> int:
        return ceil_div(self.size, 2)

    @property
    def before(self) -> int:
        """Squares of padding before the input."""
        return ceil_div(self.padding[0], 2)

    @property
    def after(self) -> int:
        return self.output - 1 + self.taps - self.before - self.squares

    @property
    def taps(self) -> int:
        return (self.kernel - 1 - self.padding[0]) // 2 + self.before + 1

    def of_square(self, tap: int) -> list[int | None]:
        """The kernel's taps of both pixels of a square, None beyond its ends."""
        found = (2 * (tap - self.before) + pixel + self.padding[0] for pixel in (0, 1))
        return [at if 0 <= at < self.kernel else None for at in found]


@dataclass(frozen=True)
class DepthwiseConv2D(Sliding):
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

    def output_shape(self, shape: Shape) -> Shape:
        if not is_count(self.depth_multiplier):
            raise ShapeError(f"depth_multiplier is 1 or more, not {self.depth_multiplier}.")
        return (*self.window(shape).output, shape[-1] * self.depth_multiplier)

    def kernel(self, shape: Shape) -> Weight:
        (ky, kx), multiplier = pair(self.kernel_size), self.depth_multiplier
        matrix = (ky * kx, shape[-1] * multiplier)
        return Weight((ky, kx, shape[-1], multiplier), self.kernel_initializer, decays=True, matrix=matrix)

    def flops(self, shape: Shape) -> int:
        height, width, channels = self.output_shape(shape)
        return 2 * height * width * channels * self.window(shape).taps

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        window = self.window(x.shape[1:])
        padded = window.pad(x)
        taps = (padded[region][..., None] * kernel[ky, kx] for ky, kx, region in window.slices())
        return reduce(np.add, taps).reshape(len(x), *self.output_shape(x.shape[1:]))

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        window = self.window(x.shape[1:])
        padded = window.pad(x)
        dx, dkernel = np.zeros_like(padded), np.zeros_like(kernel)
        by_channel = dy.reshape(*dy.shape[:-1], -1, self.depth_multiplier)
        for ky, kx, region in window.slices():
            dx[region] += (by_channel * kernel[ky, kx]).sum(-1)
            dkernel[ky, kx] = (padded[region][..., None] * by_channel).sum((0, 1, 2))
        return window.crop(dx), dkernel

    def geometry(self, x: Tensor) -> Geometry:
        kind = "grouped" if self.depth_multiplier > 1 else "depthwise"
        return Geometry(kind, x.images, self.window(x.shape[1:]), x.channels)

    @property
    def has_integer_kernels(self) -> bool:
        return self.depth_multiplier == 1

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 0, scale)


DEPTH_CPU, DEPTH_GPU = 8, 2  # channels of a tile of the weights' gradient


@dataclass(frozen=True)
class Conv2DTranspose(Sliding):
    """Transposed convolution over (height, width, channels), as in Keras and PyTorch: each input pixel adds the kernel,
    times its value, to the output.

    Arguments:
    - `filters`: output channels.
    - `kernel_size`, `strides`, `dilation_rate`: int or (y, x).
    - `padding`: `"valid"` (default); `"same"`, for an output of input size x strides; or ((top, bottom), (left,
      right)), the pixels cut off the output's sides, as in PyTorch.
    - `output_padding`: rows and columns added at the bottom and the right: int or (y, x), below the strides (default
      None: as in Keras, what makes the output of "same" input size x strides, and else as large as strides reach).
    - `use_bias`: add a bias to each filter (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS.
    - `groups`: divides input channels and filters (default 1, by far the fastest).

    Kernel: (ky, kx, channels / groups, filters), as Conv2D's. Keras's arrays have filters before channels, PyTorch's
    (channels, filters / groups, ky, kx). Raises ShapeError if arguments and input don't fit.
    """

    filters: int
    kernel_size: int | Pair
    strides: int | Pair = 1
    padding: Padding = "valid"
    output_padding: int | Pair | None = None
    dilation_rate: int | Pair = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"
    groups: int = 1

    def window(self, shape: Shape) -> Window:
        """The window of the convolution whose input has the size of this op's output for an input of `shape`."""
        if len(shape) != 3:
            raise ShapeError(f"Conv2DTranspose takes (height, width, channels), not {shape}.")
        kernel, strides, dilation = pair(self.kernel_size), pair(self.strides), pair(self.dilation_rate)
        if min(*kernel, *strides, *dilation) < 1:
            raise ShapeError(f"Kernel {kernel}, strides {strides} and dilation {dilation} of a window are 1 or more.")
        size = [self._size(axis, n, kernel, strides, dilation) for axis, n in enumerate(shape[:2])]
        window = Window.of((*size, 1), kernel, strides, self.padding, dilation) if min(size) > 0 else None
        if window is None or window.output != shape[:2]:
            raise ShapeError(
                f"An output of {size} doesn't lead back to {shape[:2]} by strides {strides} and padding "
                f"{self.padding}: output_padding {self.output_padding} is too large or too small."
            )
        return window

    def _size(self, axis: int, n: int, kernel: Pair, strides: Pair, dilation: Pair) -> int:
        """Size of the output along one axis."""
        stride, reach = strides[axis], (kernel[axis] - 1) * dilation[axis] + 1
        more = None if self.output_padding is None else pair(self.output_padding)[axis]
        if self.padding == "same":
            return n * stride if more is None else (n - 1) * stride + reach % 2 + more
        if self.padding == "valid":
            return (n - 1) * stride + reach + (max(stride - reach, 0) if more is None else more)
        if not isinstance(self.padding, tuple | list) or len(self.padding) != 2:
            raise ShapeError(f"padding is 'same', 'valid' or ((top, bottom), (left, right)), not {self.padding!r}.")
        return (n - 1) * stride + reach + (more or 0) - sum(pair(self.padding[axis]))

    def output_shape(self, shape: Shape) -> Shape:
        window = self.window(shape)
        check_groups(shape[-1], self.filters, self.groups)
        return (window.height, window.width, self.filters)

    def kernel(self, shape: Shape) -> Weight:
        size = (*pair(self.kernel_size), shape[-1] // self.groups, self.filters)
        return Weight(size, self.kernel_initializer, decays=True)

    def flops(self, shape: Shape) -> int:
        return 2 * shape[0] * shape[1] * shape[2] // self.groups * self.filters * self.window(shape).taps

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        window = self.window(x.shape[1:])
        y = window.pad(np.zeros((len(x), window.height, window.width, self.filters), x.dtype))
        x, kernel = by_group(x, self.groups), by_group(kernel, self.groups)
        for ky, kx, at in window.slices():
            product = np.einsum("nhwgi,igo->nhwgo", x, kernel[ky, kx])
            y[at] += product.reshape(*product.shape[:3], -1)
        return window.crop(y)

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        window = self.window(x.shape[1:])
        padded, grouped, weights = (by_group(values, self.groups) for values in (window.pad(dy), x, kernel))
        dx, dkernel = np.zeros_like(grouped), np.zeros_like(weights)
        for ky, kx, at in window.slices():
            dx += np.einsum("nhwgo,igo->nhwgi", padded[at], weights[ky, kx])
            dkernel[ky, kx] = np.einsum("nhwgi,nhwgo->igo", grouped, padded[at])
        return dx.reshape(x.shape), dkernel.reshape(kernel.shape)

    def _convolution(self, x: Tensor) -> Conv2D:
        """The convolution from tensors like the output to tensors like `x`, whose transposed kernel is this op's."""
        window = self.window(x.shape[1:])
        return Conv2D(x.channels, window.kernel, window.strides, window.padding, window.dilation)

    def _geometry(self, x: Tensor, y: Tensor) -> tuple[int, ...]:
        """GROUPS_ARGUMENTS in kernels/convolution_transpose.cl."""
        sizes = x.images, x.height, x.width, x.channels, y.height, y.width, y.channels, self.groups
        return *sizes, *self._taps(x)

    def _taps(self, x: Tensor) -> tuple[int, ...]:
        window = self.window(x.shape[1:])
        (top, _), (left, _) = window.padding
        return window.taps, window.kernel[1], *window.strides, *window.dilation, top, left

    def emit_linear(
        self, e: Emitter, x: Any, kernel: Any, y: Any, epilogue: Epilogue, residual: Residual | None = None
    ) -> None:
        if self.groups > 1:
            e.launch(
                "convolution_transpose.cl", "transposed_groups_forward", (y.rows, y.blocks), x.read, kernel.read,
                y.write, *self._geometry(x, y), *epilogue.arguments, flops=self.flops(x.shape[1:]) * x.images, depth=1,
                **epilogue.macros,
            )  # fmt: skip
            return
        self._convolution(x).emit_backward_data(e, y, kernel, x, Target(y))
        if epilogue == Epilogue():
            return
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "convolution_transpose.cl", "finish_outputs", (groups, y.blocks), y.update, y.rows, count,
            *epilogue.arguments, depth=1, **epilogue.macros,
        )  # fmt: skip

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 0 if self.groups > 1 else self.window(x.shape[1:]).taps, scale)

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Any, dy: Any, target: Target) -> None:
        if self.groups > 1:
            e.launch(
                "convolution_transpose.cl", "transposed_groups_backward_data", (x.rows, x.blocks), dy.read,
                prepared.read, *self._geometry(x, dy), *target.arguments, flops=self.flops(x.shape[1:]) * x.images,
                depth=1, **target.macros,
            )  # fmt: skip
            return
        direct = target.mask is None and not target.accumulate
        dx = target.tensor if direct else e.tensor("input gradient", x.shape)
        self._convolution(x).emit_linear(e, dy, prepared, dx, Epilogue())
        if not direct:
            emit_copy(e, dx, target)

    def emit_backward_weights(
        self, e: Emitter, x: Any, dy: Any, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[GradientSum, GradientSum | None]:
        if self.groups > 1:
            dy_sum = emit_channel_sums(e, dy, sums, add) if sums else None
            return self._emit_groups_backward_weights(e, x, dy, gradient, add), dy_sum
        taps, members, image_rows = self._taps(x), e.traits.members, x.images * x.height
        depth = DEPTH_GPU if e.traits.gpu else DEPTH_CPU
        work = taps[0] * ceil_div(x.channels, depth)
        _, rows = e.split_rows(image_rows, work * dy.blocks, least=1 if e.traits.gpu else 4)
        groups = ceil_div(image_rows, members * min(rows, ceil_div(LONGEST_SUM, x.width)))
        kernel_sum, rows = start_sum(e, gradient, image_rows, groups, members)
        e.launch(
            "convolution_transpose.cl", "transposed_backward_weights",
            (work * members, dy.blocks, kernel_sum.groups), x.read, dy.read,
            kernel_sum.access(add),
            x.images, x.height, x.width, x.channels, dy.height, dy.width, *taps, rows, dy.blocks, int(add),
            flops=self.flops(x.shape[1:]) * x.images, depth=depth,
        )  # fmt: skip
        return kernel_sum, emit_channel_sums(e, dy, sums, add) if sums else None

    def _emit_groups_backward_weights(
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, add: bool
    ) -> GradientSum:
        image_rows = x.images * x.height
        parts, _ = e.split_rows(image_rows, gradient.rows * dy.blocks, least=1)
        total, rows = start_sum(e, gradient, image_rows, parts)
        e.launch(
            "convolution_transpose.cl", "transposed_groups_backward_weights", (gradient.rows, dy.blocks, total.groups),
            x.read, dy.read, total.access(add), *self._geometry(x, dy), rows, int(add),
            flops=self.flops(x.shape[1:]) * x.images, depth=1,
        )  # fmt: skip
        return total
