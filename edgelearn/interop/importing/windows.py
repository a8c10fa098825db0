"""Pooling, padding, means and resizing for handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    AveragePooling2D,
    GlobalAveragePooling2D,
    Max,
    MaxPooling2D,
    Mean,
    Pad,
    Resize,
    Sum,
    ZeroPadding2D,
)  # fmt: skip
from edgelearn.ops.reductions import Reduction
from edgelearn.ops.window import Padding, Pair

from . import linear, shapes
from .builder import Builder, check_size
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
        return b.like(x, b.add(AdaptiveAveragePooling2D(size), layer), channels)
    window = (height // size[0], width // size[1])
    return average_pool(b, x, window, window, channels=channels)


def reduce(
    b: Builder, x: Value | np.ndarray, kind: type[Reduction], axes: Sequence[int] | None, keepdims: bool = False
) -> Value | np.ndarray:
    """The mean, the sum or the maximum over some of the file's axes.

    Arguments:
    - `kind`: Mean, Sum or Max.
    - `axes`: of the file (default None: all but the batch).
    - `keepdims`: leave them with size 1 (default False).
    """
    if isinstance(x, np.ndarray):
        function = {Mean: np.mean, Sum: np.sum, Max: np.max}[kind]
        return np.asarray(function(x, None if axes is None else tuple(axes), keepdims=keepdims))
    every = [axis for axis in range(x.rank) if axis != x.batch_axis]
    reduced = {x.axis(int(axis)) for axis in (every if axes is None else axes)}
    if x.batch_axis in reduced:
        raise UnsupportedError("It reduces the batch.", "Axes of an example.")
    if any(x.axes[axis] for axis in reduced):
        order: list[int | None] = list(b.natural_order(x))
        places = tuple(place for place, axis in enumerate(order) if axis in reduced)
        layer = b.laid_out(x, order)
        if kind is Mean and len(order) == 3 and places == (0, 1):
            return _without(_pixel(b, x, b.add(GlobalAveragePooling2D(), layer), order), reduced, keepdims)
        x = b.view(x, b.add(kind(tuple(place + 1 for place in places)), layer), order)
    return _without(x, reduced, keepdims)


def global_max_pool(b: Builder, x: Value, channels: int) -> Value:
    """The maximum of each channel."""
    axes = [axis for axis in range(x.rank) if axis not in (x.axis(channels), x.batch_axis)]
    found = reduce(b, x, Max, axes, keepdims=True)
    assert isinstance(found, Value)
    return found


def pad(
    b: Builder, x: Value | np.ndarray, sides: Sequence[Pair], value: float = 0.0, mode: str = "constant"
) -> Value | np.ndarray:
    """More values around those that are there; a negative number takes some away.

    Arguments:
    - `sides`: (before, after) for each of the file's axes.
    - `value`, `mode`: as of Pad.
    """
    if isinstance(x, np.ndarray):
        check_size(tuple(n + sum(side) for n, side in zip(x.shape, sides, strict=True)))
        return np.pad(x, sides, mode, **({"constant_values": value} if mode == "constant" else {}))  # type: ignore
    for axis, (before, after) in enumerate(sides):
        if before < 0 or after < 0:
            x = shapes.slice_axis(b, x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
            assert isinstance(x, Value)
    sides = [(max(before, 0), max(after, 0)) for before, after in sides]
    padded = [axis for axis, side in enumerate(sides) if any(side)]
    if not padded:
        return x
    if x.batch_axis in padded:
        raise UnsupportedError("It pads the batch.", "Padding of an example.")
    order: list[int | None] = list(b.natural_order(x))
    if len(order) < 3:
        order = [*[None] * (3 - len(order)), *order]
    around = tuple((0, 0) if axis is None else sides[axis] for axis in order)
    layer = b.laid_out(x, order)
    if len(order) == 3 and not any(around[2]) and mode == "constant" and value == 0:
        return b.view(x, b.add(ZeroPadding2D((around[0], around[1])), layer), order)
    return b.view(x, b.add(Pad(around, mode, value), layer), order)


def _pixel(b: Builder, x: Value, layer: str, order: Sequence[int | None]) -> Value:
    """The value of a layer of channels that was made from an image in this order."""
    places = {order[2]: 0}
    new = Value.of(layer, b.shape(layer), tuple(places.get(axis) for axis in range(x.rank)), x.batch)
    return replace(new, axes=tuple((BATCH,) if n == x.batch_axis else new.axes[1 + n] for n in range(x.rank)))


def _without(x: Value, reduced: set[int], keepdims: bool) -> Value:
    return x if keepdims else x.squeezed(tuple(reduced))


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


def resize(
    b: Builder, x: Value, size: Pair, mode: str, *, coordinates: str = "half_pixel",
    rounding: str = "round_prefer_ceil", scale: tuple[float, float] | None = None, channels: int = -1,
) -> Value:  # fmt: skip
    """An image of another size; arguments as of Resize, where ONNX's "linear" is "bilinear"."""
    layer = b.image(x, channels)
    if b.shape(layer)[:2] == size:
        return x
    names = {"linear": "bilinear", "nearest": "nearest", "bilinear": "bilinear"}
    if mode not in names:
        raise UnsupportedError(f"Interpolation '{mode}'.", "nearest or bilinear.")
    op = Resize(size, names[mode], coordinates, rounding, scale)
    return b.like(x, b.add(op, layer), channels)
