"""Convolutions, Dense and BatchNormalization for handlers. Kernels come in Keras's order of axes, as constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    GroupNormalization,
    LayerNormalization,
    MatMul,
    ZeroPadding2D,
)  # fmt: skip
from edgelearn.ops.window import Padding, Pair, Window

from . import shapes
from .builder import Builder
from .value import BATCH, Value

Constant = np.ndarray


def conv(
    b: Builder, x: Value, kernel: Constant, bias: Constant | None = None, *, strides: Pair = (1, 1),
    padding: Padding = "valid", dilation: Pair = (1, 1), groups: int = 1, channels: int = -1,
) -> Value:  # fmt: skip
    """A convolution; one whose groups are its channels is a DepthwiseConv2D.

    Arguments:
    - `kernel`: (height, width, channels / groups, filters).
    - `bias`: (filters,).
    - `strides`, `padding`, `dilation`, `groups`: as of Conv2D.
    - `channels`: the file's axis of the channels (default the last).
    """
    if kernel.ndim != 4:
        raise UnsupportedError(f"Its kernel has {kernel.ndim} axes.", "Convolutions of images and of sequences.")
    layer = b.image(x, channels)
    before = b.layers.get(layer)
    if before and isinstance(before.op, ZeroPadding2D):  # explicit pads become the convolution's
        inside = Window.of(b.shape(layer), kernel.shape[:2], strides, padding, dilation).padding
        layer = before.inputs[0]
        vertical, horizontal = ((a[0] + c[0], a[1] + c[1]) for a, c in zip(before.op.sides, inside, strict=True))
        padding = (vertical, horizontal)
    shape = b.shape(layer)
    padding = named(padding, shape, kernel.shape[:2], strides, dilation)
    depthwise = groups > 1 and groups == shape[-1] == kernel.shape[3]
    if depthwise:
        op = DepthwiseConv2D(kernel.shape[:2], strides, padding, dilation, bias is not None)
        kernel = kernel.transpose(0, 1, 3, 2)
    else:
        op = Conv2D(kernel.shape[3], kernel.shape[:2], strides, padding, dilation, groups, bias is not None)
    return b.like(x, b.add(op, layer, weights=_weights(kernel=kernel, bias=bias)), channels)


def transposed_conv(
    b: Builder, x: Value, kernel: Constant, bias: Constant | None = None, *, strides: Pair = (1, 1),
    padding: Padding = "valid", output_padding: Pair | None = None, dilation: Pair = (1, 1), groups: int = 1,
    channels: int = -1,
) -> Value:  # fmt: skip
    """A transposed convolution; `kernel` is (height, width, channels, filters / groups), other arguments as of
    Conv2DTranspose."""
    if kernel.ndim != 4:
        raise UnsupportedError(f"A kernel of {kernel.ndim} axes.", "Images.")
    height, width, inputs, filters = kernel.shape
    kernel = kernel.reshape(height, width, groups, inputs // groups, filters)  # ours has filters of all groups in a row
    kernel = kernel.swapaxes(2, 3).reshape(height, width, inputs // groups, groups * filters)
    op = Conv2DTranspose(
        groups * filters, (height, width), strides, padding, output_padding, dilation, bias is not None, groups=groups
    )
    return b.like(x, b.add(op, b.image(x, channels), weights=_weights(kernel=kernel, bias=bias)), channels)


def dense(b: Builder, x: Value, kernel: Constant, bias: Constant | None = None) -> Value:
    """A matrix product over the last axis; `kernel` is (features, units), `bias` (units,).

    Features that the file has flattened in another order than the layer's are not moved: the kernel's rows are.
    """
    if kernel.ndim != 2 or x.shape[-1] != kernel.shape[0]:
        raise UnsupportedError(f"A matrix product of {x.shape} and {kernel.shape}.", "A constant (features, units).")
    weights = _weights(kernel=_rows(x, kernel), bias=bias)
    units, features = kernel.shape[1], tuple(sorted(x.axes[-1]))
    points = tuple(factor for axis in x.axes[:-1] for factor in axis if factor != BATCH)
    if points:
        weights["kernel"] = weights["kernel"][None, None]
        layer = b.add(Conv2D(units, 1, use_bias=bias is not None), b.arrange(x, (), points, features), weights=weights)
    else:
        layer = b.add(Dense(units, bias is not None), b.arrange(x, features), weights=weights)
    places = {BATCH: BATCH} | {factor: place for place, factor in enumerate(points)}
    axes = tuple(tuple(places[factor] for factor in axis) for axis in x.axes[:-1])
    sizes = (*(x.sizes[factor] for factor in points), *((units,) if units > 1 else ()))
    return Value(layer, sizes, (*axes, (len(points),) if units > 1 else ()), x.batch)


def matmul(b: Builder, x: Value | Constant, y: Value | Constant) -> Value | Constant:
    """The product of the last two axes, as numpy.matmul: of a value and a matrix a dense layer, of two values a MatMul,
    of which one may be a constant of more axes."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.matmul(x, y)
    if isinstance(x, Value) and isinstance(y, np.ndarray) and y.ndim == 2:
        return dense(b, x, y)
    if isinstance(y, Value) and isinstance(x, np.ndarray) and x.ndim == 2 and y.rank > 1:
        return shapes.turn(b, dense(b, shapes.turn(b, y), x.T))  # type: ignore[arg-type]
    if min(len(x.shape), len(y.shape)) < 2:
        raise UnsupportedError(f"A matrix product of {x.shape} and {y.shape}.", "Matrices.")
    rank = max(len(x.shape), len(y.shape))
    like = _with_rank(x if isinstance(x, Value) else y, rank)  # type: ignore[arg-type]
    x, y = (_with_rank(v, rank) if isinstance(v, Value) else b.constant(v, like) for v in (x, y))
    batches = {x.batch_axis, y.batch_axis} - {None}
    if batches & {rank - 2, rank - 1}:
        raise UnsupportedError(
            f"A matrix product of {x.shape} and {y.shape}: the batch is a matrix's axis.", "Keep it apart."
        )
    outer = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (shapes.expand(b, v, (*outer, *v.shape[-2:])) for v in (x, y))
    assert isinstance(x, Value) and isinstance(y, Value)
    order = [*(axis for axis in range(rank - 2) if axis not in batches), rank - 2, rank - 1]
    layer = b.add(MatMul(), b.laid_out(x, order), b.laid_out(y, order))
    return b.view(y if x.batch_axis is None else x, layer, order)


def _with_rank(x: Value, rank: int) -> Value:
    return x if x.rank == rank else _with_rank(x.expanded(0), rank)


def batchnorm(
    b: Builder, x: Value, gamma: Constant | None, beta: Constant | None, mean: Constant, variance: Constant, *,
    epsilon: float = 1e-3, momentum: float = 0.99, channels: int = -1,
) -> Value:  # fmt: skip
    """BatchNormalization over the file's axis `channels`; gamma is 1 and beta 0 where they are None."""
    frozen = tuple(role for role, array in (("gamma", gamma), ("beta", beta)) if array is None)
    gamma = np.ones_like(mean) if gamma is None else gamma
    beta = np.zeros_like(mean) if beta is None else beta
    weights = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    x = channels_last(b, x, channels)
    return b.apply(BatchNormalization(momentum, epsilon), x, weights=weights, frozen=frozen)


def channels_last(b: Builder, x: Value, channels: int) -> Value:
    """The value in a layer whose last axis is the file's axis `channels`."""
    channels, last = x.axis(channels), len(x.sizes)
    axis = x.axes[channels]
    if axis == tuple(range(last - len(axis), last)) and b.shape(x.layer)[-1] == x.shape[channels]:
        return x
    order = [*(n for n in b.natural_order(x) if n != channels), channels]
    return replace(b.view(x, b.laid_out(x, order), order), sole=x.sole)


def add_bias(b: Builder, x: Value, axis: int, bias: Constant) -> bool:
    """Give the layer that makes `x`, and that nothing else reads, a bias for each element of the file's `axis`. False
    if it can't."""
    layer, last = b.maker(x), len(x.sizes) - 1
    if bias.size > 1 and x.axes[axis] != (last,):
        return False
    if not x.sole or layer is None or not isinstance(layer.op, Conv2D | DepthwiseConv2D | Dense) or layer.op.use_bias:
        return False
    if layer.shape[-1] != bias.size:
        return False
    layer.op = replace(layer.op, use_bias=True)
    layer.weights["bias"] = np.ascontiguousarray(bias, np.float32)
    return True


def named(padding: Padding, shape: tuple[int, ...], kernel: Pair, strides: Pair, dilation: Pair = (1, 1)) -> Padding:
    """ "valid" or "same" where the padding in pixels is that."""
    if isinstance(padding, str):
        return padding
    for name in ("valid", "same"):
        try:
            if Window.of(shape, kernel, strides, name, dilation).padding == padding:
                return name
        except ValueError:
            continue
    return padding


def _weights(**arrays: Constant | None) -> dict[str, Constant]:
    return {role: array for role, array in arrays.items() if array is not None}


def _rows(x: Value, kernel: Constant) -> Constant:
    """The kernel with its rows in the order in which the layer has the features."""
    factors = x.axes[-1]
    if list(factors) == sorted(factors):
        return kernel
    split = kernel.reshape(*(x.sizes[factor] for factor in factors), kernel.shape[1])
    order = [factors.index(factor) for factor in sorted(factors)]
    return split.transpose(*order, len(factors)).reshape(prod(kernel.shape[:1]), kernel.shape[1])


def layer_normalization(
    b: Builder, x: Value, axes: Sequence[int], gamma: Constant | None, beta: Constant | None, epsilon: float
) -> Value:
    """Mean 0 and variance 1 over the file's `axes` of each example, then gamma and beta, which have these axes."""
    axes = [x.axis(axis) for axis in axes]
    natural = b.natural_order(x)
    last = [axis for axis in natural if axis in axes]
    if len(last) != len(axes):
        raise UnsupportedError("It normalizes the batch.", "Axes of an example.")
    order = [*(axis for axis in natural if axis not in axes), *last]
    sizes, turned = [x.shape[axis] for axis in axes], [axes.index(axis) for axis in last]
    found = {"gamma": gamma, "beta": beta}
    weights = {
        role: np.broadcast_to(array, sizes).transpose(turned) for role, array in found.items() if array is not None
    }
    op = LayerNormalization(epsilon, beta is not None, gamma is not None, tuple(range(-len(axes), 0)))
    return b.view(x, b.add(op, b.laid_out(x, order), weights=weights), order)


def group_normalization(
    b: Builder, x: Value, groups: int, gamma: Constant | None, beta: Constant | None, epsilon: float, channels: int
) -> Value:
    """Mean 0 and variance 1 over all values of a group of channels; -1: over each channel by itself."""
    op = GroupNormalization(epsilon, beta is not None, gamma is not None, groups)
    return b.like(x, b.add(op, b.image(x, channels), weights=_weights(gamma=gamma, beta=beta)), channels)
