"""Pooling, padding, means and resizing for handlers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import AveragePooling2D, GlobalAveragePooling2D, MaxPooling2D, PadChannels, ZeroPadding2D
from edgelearn.ops.window import Padding, Pair

from . import linear
from .builder import Builder
from .value import BATCH, Value

Sides = tuple[Pair, Pair]


def max_pool(
    b: Builder, x: Value, size: Pair, strides: Pair, padding: Padding = "valid", *, ceil: bool = False,
    channels: int = -1,
) -> Value:  # fmt: skip
    """The maximum of each window; padding is ignored.

    Arguments:
    - `size`, `strides`, `padding`: as of MaxPooling2D.
    - `ceil`: the last windows may reach over the edge, as with ceil_mode.
    - `channels`: the file's axis of the channels (default the last).
    """
    layer = b.image(x, channels)
    padding = _reaching_over(b.shape(layer), size, strides, padding) if ceil else padding
    padding = linear.named(padding, b.shape(layer), size, strides)
    return b.like(x, b.add(MaxPooling2D(size, strides, padding), layer), channels)


def average_pool(
    b: Builder, x: Value, size: Pair, strides: Pair, padding: Padding = "valid", *, ceil: bool = False,
    counts_padding: bool = False, channels: int = -1,
) -> Value:  # fmt: skip
    """The mean of each window; `counts_padding`: with the zeros around the image, as with count_include_pad."""
    layer = b.image(x, channels)
    over = _reaching_over(b.shape(layer), size, strides, padding) if ceil else padding
    if counts_padding and not isinstance(padding, str) and not isinstance(over, str) and any(map(any, padding)):
        layer = b.add(ZeroPadding2D(padding), layer, name=f"{b.operator.name}_pad")
        (_, bottom), (_, right) = over
        over = ((0, bottom - padding[0][1]), (0, right - padding[1][1]))
    over = linear.named(over, b.shape(layer), size, strides)
    shape = b.shape(layer)
    if size == shape[:2] and over == "valid":
        return b.like(x, _global_average(b, layer), channels)
    return b.like(x, b.add(AveragePooling2D(size, strides, over), layer), channels)


def adaptive_average_pool(b: Builder, x: Value, size: Pair, *, channels: int = -1) -> Value:
    """The means of `size` equal parts of the image."""
    layer = b.image(x, channels)
    height, width, _ = b.shape(layer)
    if (height, width) == size:
        return x
    if height % size[0] or width % size[1]:
        raise UnsupportedError(f"Parts of different sizes: {height} x {width} pixels into {size[0]} x {size[1]}.",
                               "An input size at which the parts are equal.")  # fmt: skip
    window = (height // size[0], width // size[1])
    return average_pool(b, x, window, window, channels=channels)


def mean(b: Builder, x: Value | np.ndarray, axes: Sequence[int], keepdims: bool = False) -> Value | np.ndarray:
    """The mean over some of the file's axes."""
    if isinstance(x, np.ndarray):
        return x.mean(tuple(axes), keepdims=keepdims)
    reduced = {x.axis(axis) for axis in axes}
    if x.batch_axis in reduced:
        raise UnsupportedError("A mean over the batch.")
    kept = [axis for axis in b.natural_order(x) if axis not in reduced]
    if any(x.axes[axis] for axis in reduced):
        order = [axis for axis in b.natural_order(x) if axis in reduced]
        pixels = tuple(factor for axis in order for factor in x.axes[axis])
        features = tuple(factor for axis in kept for factor in x.axes[axis])
        spatial = [x.axes[axis] for axis in order] if len(order) == 2 else [pixels, ()]
        layer = b.add(GlobalAveragePooling2D(), b.arrange(x, *spatial, features))
        sizes = tuple(x.sizes[factor] for factor in features)
        places = {factor: place for place, factor in enumerate(features)}
        new_axes = tuple(
            () if axis in reduced else tuple(factor if factor == BATCH else places[factor] for factor in factors)
            for axis, factors in enumerate(x.axes)
        )
        x = Value(layer, sizes, new_axes, x.batch)
    return x if keepdims else x.squeezed(tuple(reduced))


def pad(b: Builder, x: Value | np.ndarray, sides: Sequence[Pair], value: float = 0.0) -> Value | np.ndarray:
    """Zeros around the values; `sides` has (before, after) for each of the file's axes."""
    if isinstance(x, np.ndarray):
        return np.pad(x, sides, constant_values=value)
    padded = [axis for axis, side in enumerate(sides) if any(side)]
    if not padded:
        return x
    if min(min(side) for side in sides) < 0:
        raise UnsupportedError(f"Negative padding {tuple(sides)}.", "Slice.")
    if value:
        raise UnsupportedError(f"Padding with {value}.", "Padding with 0.")
    if x.batch_axis in padded:
        raise UnsupportedError("Padding of the batch.")
    order: list[int | None] = list(b.natural_order(x))
    if padded == order[-1:]:
        return b.view(x, b.add(PadChannels(*sides[padded[0]]), b.laid_out(x, order)), order)
    if len(order) > 3 or order[-1] in padded:
        raise UnsupportedError(f"Padding of axes {padded} of {x.shape}.", "Padding of height and width.")
    order = [*[None] * (3 - len(order)), *order]
    vertical, horizontal = ((0, 0) if axis is None else sides[axis] for axis in order[:2])
    return b.view(x, b.add(ZeroPadding2D((vertical, horizontal)), b.laid_out(x, order)), order)


def _global_average(b: Builder, layer: str) -> str:
    """The mean over all pixels of an image, as an image of one pixel."""
    mean = b.add(GlobalAveragePooling2D(), layer)
    value = Value.of(mean, b.shape(mean), (0,))
    return b.arrange(value, (), (), value.axes[1])


def _reaching_over(shape: tuple[int, ...], size: Pair, strides: Pair, padding: Padding) -> Padding:
    """The padding with which the windows cover the whole image. A window starts inside the image or before it."""
    if isinstance(padding, str):
        return padding
    sides = []
    for n, window, stride, (before, after) in zip(shape[:2], size, strides, padding, strict=True):
        count = -(-(n + before + after - window) // stride) + 1
        if (count - 1) * stride >= n + before:
            count -= 1
        sides.append((before, max(after, (count - 1) * stride + window - n - before)))
    return tuple(sides)  # type: ignore[return-value]
