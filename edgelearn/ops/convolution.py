"""Conv2D, with any kernel, stride, padding, dilation and number of groups; and Conv2DTranspose, its gradient to the
input as a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.tuned.store import KernelConfig

from . import convolution_local, convolution_units, grouped, pointwise, tiles, winograd
from .base import Arrays, Gradients, LinearOp, Weight, is_count
from .emit import LONGEST_SUM, Emitter, Epilogue, Sum, emit_channel_sums, start_sum
from .formats import KernelView
from .target import Target, emit_copy
from .tensor import Shape, Tensor, ceil_div
from .window import Padding, Pair, Window, pair


@dataclass(frozen=True)
class Conv2D(LinearOp):
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

    def window(self, shape: Shape) -> Window:
        return Window.of(shape, pair(self.kernel_size), pair(self.strides), self.padding, pair(self.dilation_rate))

    def output_shape(self, shape: Shape) -> Shape:
        window = self.window(shape)
        if not is_count(self.filters):
            raise ShapeError(f"A convolution has 1 filter or more, not {self.filters}.")
        if not is_count(self.groups) or shape[-1] % self.groups or self.filters % self.groups:
            raise ShapeError(
                f"groups={self.groups} must divide both the {shape[-1]} input channels and the {self.filters} filters."
            )
        return (*window.output, self.filters)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        kernel = (*pair(self.kernel_size), shape[-1] // self.groups, self.filters)
        weights = {"kernel": Weight(kernel, self.kernel_initializer, decays=True)}
        if self.use_bias:
            weights["bias"] = Weight((self.filters,), "zeros")
        return weights

    def flops(self, shape: Shape) -> int:
        height, width, filters = self.output_shape(shape)
        return 2 * height * width * filters * self.window(shape).taps * (shape[-1] // self.groups)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        padded = _by_group(window.pad(x), self.groups)
        taps = (
            np.einsum("nhwgi,igo->nhwgo", padded[region], _kernel_by_group(kernel[ky, kx], self.groups))
            for ky, kx, region in window.slices()
        )
        y = reduce(np.add, taps)
        y = y.reshape(*y.shape[:3], -1)
        return y + weights["bias"] if self.use_bias else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        padded = _by_group(window.pad(x), self.groups)
        by_group = _by_group(dy, self.groups)
        dx, dkernel = np.zeros_like(padded), np.zeros_like(kernel)
        for ky, kx, region in window.slices():
            dx[region] += np.einsum("nhwgo,igo->nhwgi", by_group, _kernel_by_group(kernel[ky, kx], self.groups))
            dkernel[ky, kx] = np.einsum("nhwgi,nhwgo->igo", padded[region], by_group).reshape(dkernel.shape[2:])
        gradients = {"kernel": dkernel}
        if self.use_bias:
            gradients["bias"] = dy.sum((0, 1, 2))
        return [window.crop(dx.reshape(*dx.shape[:3], -1))], gradients

    def emit_linear(self, e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
        window = self.window(x.shape[1:])
        if self.groups > 1:
            grouped.emit_forward(e, window, self.groups, x, kernel, y, epilogue)
        elif e.compute.uses_units:
            convolution_units.emit_forward(e, window, x, kernel, y, epilogue, self.flops(x.shape[1:]) * x.images)
        elif window.is_pointwise and x.block == 16:
            pointwise.emit_forward(e, x, kernel, y, epilogue)
        else:
            flops = self.flops(x.shape[1:]) * x.images
            candidates = _tiles(e, window, x, y, y.width)
            with e.choose("convolution_forward", self._problem(window, x), candidates) as choice:
                if "slices" in choice:
                    convolution_local.emit_forward(e, choice, window, x, kernel, y, epilogue, flops)
                    return
                if "chunk" in choice:
                    winograd.emit_forward(e, choice, window, x, kernel, y, epilogue)
                    return
                e.launch(
                    "convolution.cl", "convolution_forward",
                    (x.images * y.height * ceil_div(y.width, choice["tile"]), y.blocks // choice["panels"]),
                    x.read, kernel.read, y.write, x.images, x.height, x.width, x.channels, y.height, y.width,
                    *epilogue.arguments,
                    flops=flops, in_block=x.block, depth=1, **choice, **window.macros, **epilogue.macros,
                    **y.value_macros, **e.compute.macros,
                )  # fmt: skip

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return KernelView(kernel, 0 if self.groups > 1 else self.window(x.shape[1:]).taps, scale)

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Tensor, dy: Tensor, target: Target) -> None:
        window = self.window(x.shape[1:])
        if self.groups > 1:
            grouped.emit_backward_data(e, window, self.groups, x, prepared, dy, target)
        elif e.compute.uses_units:
            convolution_units.emit_backward_data(e, window, prepared, dy, target, self.flops(x.shape[1:]) * x.images)
        elif window.is_pointwise:
            pointwise.emit_backward_data(e, prepared, dy, target)
        else:
            stride, flops = window.strides[1], self.flops(x.shape[1:]) * x.images
            candidates = _tiles(e, window, dy, x, ceil_div(x.width, stride), prod(window.strides))
            with e.choose("convolution_backward_data", self._problem(window, x), candidates) as choice:
                if "slices" in choice:
                    convolution_local.emit_backward_data(e, choice, window, prepared, dy, target, flops)
                    return
                if "chunk" in choice:
                    winograd.emit_backward_data(e, choice, window, prepared, dy, target)
                    return
                parts = x.images * x.height * stride * ceil_div(x.width, choice["tile"] * stride)
                e.launch(
                    "convolution.cl", "convolution_backward_data", (parts, x.blocks // choice["panels"]),
                    dy.read, prepared.read, x.images, x.height, x.width, dy.channels, dy.height, dy.width,
                    *target.arguments,
                    flops=flops, in_block=16, depth=1, **choice, **window.macros, **target.macros, **e.compute.macros,
                )  # fmt: skip

    def emit_backward_weights(
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[Sum, Sum | None]:
        window = self.window(x.shape[1:])
        if e.compute.uses_units and self.groups == 1:
            flops = self.flops(x.shape[1:]) * x.images
            return convolution_units.emit_backward_weights(e, window, x, dy, gradient, sums, add, flops)
        if window.is_pointwise and self.groups == 1 and x.block == 16:
            return pointwise.emit_backward_weights(e, x, dy, gradient, sums, add)
        if self.groups > 1:
            dy_sum = emit_channel_sums(e, dy, sums, add) if sums else None
            return grouped.emit_backward_weights(e, window, self.groups, x, dy, gradient, add), dy_sum
        candidates = _depths(e, window, x, dy)
        with e.choose("convolution_backward_weights", self._problem(window, x), candidates) as choice:
            if "slices" in choice:
                flops = self.flops(x.shape[1:]) * x.images
                return convolution_local.emit_backward_weights(e, choice, window, x, dy, gradient, sums, add, flops)
            if "chunk" in choice:
                kernel_sum = winograd.emit_backward_weights(e, choice, window, x, dy, gradient, add)
            else:
                kernel_sum = self._emit_backward_weights(e, window, x, dy, gradient, add, choice)
        return kernel_sum, emit_channel_sums(e, dy, sums, add) if sums else None

    def _emit_backward_weights(
        self, e: Emitter, window: Window, x: Tensor, dy: Tensor, gradient: Tensor, add: bool, choice: KernelConfig
    ) -> Sum:
        depth, panels = choice["depth"], choice["panels"]
        work = (window.taps * ceil_div(x.channels, depth), dy.blocks // panels)
        least, members, image_rows = 1 if e.traits.gpu else 4, e.traits.members, x.images * dy.height
        _, rows = e.split_rows(image_rows, work[0] * work[1], least, choice["items"])
        groups = ceil_div(image_rows, members * min(rows, ceil_div(LONGEST_SUM, dy.width)))
        kernel_sum, rows = start_sum(e, gradient, image_rows, groups, members)
        e.launch(
            "convolution.cl", "convolution_backward_weights", (work[0] * members, work[1], kernel_sum.groups),
            x.read, dy.read,
            kernel_sum.target.update if add else kernel_sum.target.write,
            x.images, x.height, x.width, x.channels, dy.height, dy.width, rows,
            dy.blocks, int(add),
            flops=self.flops(x.shape[1:]) * x.images, in_block=x.block, tile=1, panels=panels,
            depth=depth, **window.macros, **dy.value_macros, **e.compute.macros,
        )  # fmt: skip
        return kernel_sum

    def _problem(self, window: Window, x: Tensor) -> tuple[int, ...]:
        return *window.problem(x.images, x.channels), self.filters


def _tiles(e: Emitter, window: Window, x: Tensor, y: Tensor, width: int, products: int = 1) -> list[KernelConfig]:
    """Tile sizes for a convolution, or for its gradient to the input, that reads `x` and writes `y` in rows of `width`
    neighbours, as a number of matrix `products`."""
    plain = tiles.of_convolution(e.traits, width, y.blocks)
    if winograd.applies(e, window, x):
        return winograd.with_tiles(e.traits, window, x, y, plain)
    if not e.traits.gpu or x.block < 16:
        return plain
    rows = ceil_div(y.rows, products)
    return [*convolution_local.tiles(e.traits, rows, window.taps * x.channels, y.channels), plain[0]]


def _depths(e: Emitter, window: Window, x: Tensor, dy: Tensor) -> list[KernelConfig]:
    """Tile sizes for the weights' gradient: channels, blocks of filters, and work-items a compute unit."""
    traits, depth = e.traits, min(x.block, 2 if e.traits.gpu else 8)
    depth = depth if x.block % depth == 0 else x.block
    best = {"depth": depth, "panels": tiles.panels(traits, dy.blocks), "items": 0}
    if traits.gpu and x.block == 16:
        return [*convolution_local.weight_tiles(traits, window.taps * x.channels, dy.rows, dy.channels), best]
    depths, panels = tiles.dividing(tiles.DEPTHS, x.block), tiles.dividing(tiles.PANELS, dy.blocks)
    plain = tiles.worth_trying(best, depth=depths, panels=panels, items=tiles.items(traits))
    return winograd.with_weight_tiles(traits, window, x, dy, plain) if winograd.applies(e, window, x) else plain


def _by_group(x: np.ndarray, groups: int) -> np.ndarray:
    return x.reshape(*x.shape[:-1], groups, -1)


def _kernel_by_group(kernel: np.ndarray, groups: int) -> np.ndarray:
    return kernel.reshape(kernel.shape[0], groups, -1)


DEPTH_CPU, DEPTH_GPU = 8, 2  # channels of a tile of the weights' gradient


@dataclass(frozen=True)
class Conv2DTranspose(LinearOp):
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
        if not is_count(self.filters):
            raise ShapeError(f"A convolution has 1 filter or more, not {self.filters}.")
        if not is_count(self.groups) or shape[-1] % self.groups or self.filters % self.groups:
            raise ShapeError(
                f"groups={self.groups} must divide both the {shape[-1]} input channels and the {self.filters} filters."
            )
        return (window.height, window.width, self.filters)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        kernel = (*pair(self.kernel_size), shape[-1] // self.groups, self.filters)
        weights = {"kernel": Weight(kernel, self.kernel_initializer, decays=True)}
        if self.use_bias:
            weights["bias"] = Weight((self.filters,), "zeros")
        return weights

    def flops(self, shape: Shape) -> int:
        return 2 * shape[0] * shape[1] * shape[2] // self.groups * self.filters * self.window(shape).taps

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        y = window.pad(np.zeros((len(x), window.height, window.width, self.filters), x.dtype))
        by_group = self._by_group(x)
        for ky, kx, region in window.slices():
            product = np.einsum("nhwgi,igo->nhwgo", by_group, self._by_group(kernel[ky, kx]))
            y[region] += product.reshape(*product.shape[:3], -1)
        y = window.crop(y)
        return y + weights["bias"] if self.use_bias else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,), kernel = inputs, weights["kernel"]
        window = self.window(x.shape[1:])
        padded, by_group = self._by_group(window.pad(dy)), self._by_group(x)
        dx, dkernel = np.zeros_like(by_group), np.zeros_like(kernel)
        for ky, kx, region in window.slices():
            dx += np.einsum("nhwgo,igo->nhwgi", padded[region], self._by_group(kernel[ky, kx]))
            dkernel[ky, kx] = np.einsum("nhwgi,nhwgo->igo", by_group, padded[region]).reshape(dkernel.shape[2:])
        gradients = {"kernel": dkernel}
        if self.use_bias:
            gradients["bias"] = dy.sum((0, 1, 2))
        return [dx.reshape(x.shape)], gradients

    def _by_group(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:-1], self.groups, -1)

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

    def emit_linear(self, e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
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

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Tensor, dy: Tensor, target: Target) -> None:
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
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[Sum, Sum | None]:
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
            kernel_sum.target.update if add else kernel_sum.target.write,
            x.images, x.height, x.width, x.channels, dy.height, dy.width, *taps, rows, dy.blocks, int(add),
            flops=self.flops(x.shape[1:]) * x.images, depth=depth,
        )  # fmt: skip
        return kernel_sum, emit_channel_sums(e, dy, sums, add) if sums else None

    def _emit_groups_backward_weights(self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, add: bool) -> Sum:
        image_rows = x.images * x.height
        parts, _ = e.split_rows(image_rows, gradient.rows * dy.blocks, least=1)
        total, rows = start_sum(e, gradient, image_rows, parts)
        e.launch(
            "convolution_transpose.cl", "transposed_groups_backward_weights", (gradient.rows, dy.blocks, total.groups),
            x.read, dy.read, total.target.update if add else total.target.write, *self._geometry(x, dy), rows, int(add),
            flops=self.flops(x.shape[1:]) * x.images, depth=1,
        )  # fmt: skip
        return total
