"""Operators that TFLite files and TensorFlow graphs share, and handlers of those with the same inputs in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError

from . import operators, shapes
from .builder import Builder, Value, check_size, filled
from .canonical import Operator

Operand = Value | np.ndarray
MIRRORS = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}


def known(x: Operand | None, what: str) -> np.ndarray:
    """An input that has to be constant. Raises UnsupportedError if it is not."""
    if not isinstance(x, np.ndarray):
        raise UnsupportedError(f"Its {what} is computed, or missing.", "A constant.")
    return x


def integers(x: Operand | None, what: str = "shape") -> list[int]:
    """A constant vector of whole numbers."""
    return [int(n) for n in known(x, what).reshape(-1)]


def computed(x: Operand, what: str = "input") -> Value:
    """An input that has to be computed by the network. Raises UnsupportedError for a constant."""
    if isinstance(x, np.ndarray):
        raise UnsupportedError(f"Its {what} is a constant.", "An input that depends on the network's.")
    return x


def strided_slice(
    b: Builder, x: Operand, begin: Sequence[int], end: Sequence[int], strides: Sequence[int], masks: Mapping[str, int]
) -> Operand:
    """x[begin:end:strides]; `masks`: bits for each place, as of tf.strided_slice."""
    bits = {name: masks.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if bits["ellipsis"] or bits["new_axis"]:
        raise UnsupportedError("A slice with an ellipsis or a new axis.", "A number for each axis.")
    dropped = []
    for axis, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        n = x.shape[axis]
        if bits["shrink_axis"] >> axis & 1:
            dropped.append(axis)
            if not -n <= first < n:
                raise FormatError(f"{b.operator.kind} '{b.operator.name}': element {first} of an axis of {n}.")
            x = shapes.slice_axis(b, x, axis, first % n, first % n + 1)
            continue
        if step == 0:
            raise FormatError(f"{b.operator.kind} '{b.operator.name}' has steps of 0: the file is damaged.")
        start: Any = None if bits["begin"] >> axis & 1 else first
        stop: Any = None if bits["end"] >> axis & 1 else last
        x = shapes.slice_axis(b, x, axis, start, stop, step)
    return shapes.squeeze(b, x, dropped) if dropped else x


def slice_sizes(b: Builder, x: Operand, begin: Sequence[int], size: Sequence[int]) -> Operand:
    """`size` elements from `begin` on, for each axis; -1 is all of them."""
    for axis, (first, count) in enumerate(zip(begin, size, strict=True)):
        x = shapes.slice_axis(b, x, axis, first, x.shape[axis] if count == -1 else first + count)
    return x


def pack(b: Builder, values: Sequence[Operand], axis: int) -> Operand:
    """Values as slices of a new axis."""
    if all(isinstance(x, np.ndarray) for x in values):
        return np.stack(values, axis)  # type: ignore[arg-type]
    axis %= len(values[0].shape) + 1
    parts = [x.inserted(axis) if isinstance(x, Value) else np.expand_dims(x, axis) for x in values]
    return shapes.concatenate(b, parts, axis)


def unpack(b: Builder, x: Operand, axis: int) -> tuple[Operand, ...]:
    """The slices of an axis."""
    axis %= len(x.shape)
    check_size((x.shape[axis],))
    parts = shapes.split(b, x, axis, [1] * x.shape[axis])
    return tuple(shapes.squeeze(b, part, [axis]) for part in parts)


def resize(b: Builder, x: Value, size: Sequence[int], mode: str, align_corners: bool, half_pixel: bool) -> Value:
    """An image of another size, by TensorFlow's two switches."""
    height, width = size
    if align_corners and half_pixel and mode == "nearest":
        raise UnsupportedError("align_corners with half_pixel_centers.", "One of them.")
    coordinates = "align_corners" if align_corners else "half_pixel" if half_pixel else "asymmetric"
    rounding = "round_prefer_ceil" if align_corners else "floor"
    if half_pixel and not align_corners:
        rounding = "round_prefer_ceil"
    return operators.resize(b, x, (height, width), mode, coordinates=coordinates, rounding=rounding)


def pad(b: Builder, x: Operand, paddings: np.ndarray, value: float = 0.0, mode: str = "constant") -> Operand:
    """(before, after) for each axis."""
    return operators.pad(b, x, [(int(before), int(after)) for before, after in paddings], value, mode)


def squared_difference(b: Builder, x: Operand, y: Operand) -> Operand:
    """(x - y) squared."""
    return operators.power(b, operators.subtract(b, x, y), 2.0)


def depthwise(
    b: Builder, x: Value, kernel: np.ndarray, bias: np.ndarray | None, strides: tuple[int, int], padding: Any,
    dilation: tuple[int, int] = (1, 1), channels: int = -1,
) -> Value:  # fmt: skip
    """A convolution of each channel; `kernel` is (height, width, channels, multiplier)."""
    height, width, count, multiplier = kernel.shape
    return operators.conv(
        b, x, kernel.reshape(height, width, 1, count * multiplier), bias, strides=strides, padding=padding,
        dilation=dilation, groups=count, channels=channels,
    )  # fmt: skip


def depth_to_space(b: Builder, x: Operand, size: int) -> Operand:
    """Channels become pixels, in blocks of `size` x `size`."""
    n, h, w, c = x.shape
    parts = c // max(size, 1) ** 2
    y = shapes.reshape(b, x, (n, h, w, size, size, parts))
    return shapes.reshape(b, shapes.transpose(b, y, (0, 1, 3, 2, 4, 5)), (n, h * size, w * size, parts))


def space_to_depth(b: Builder, x: Operand, size: int) -> Operand:
    """Blocks of `size` x `size` pixels become channels."""
    n, h, w, c = x.shape
    high, wide = h // max(size, 1), w // max(size, 1)
    y = shapes.reshape(b, x, (n, high, size, wide, size, c))
    return shapes.reshape(b, shapes.transpose(b, y, (0, 1, 3, 2, 4, 5)), (n, high, wide, c * size**2))


def fill(dimensions: Operand, value: Operand) -> np.ndarray:
    """A constant of one number."""
    number = known(value, "value")
    return filled(tuple(integers(dimensions)), number.reshape(()))


def same(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    """Operators that hand their input on."""
    return x


def unary(kind: str, **config: Any) -> Callable[..., Operand]:
    """Handler of an activation without settings."""
    return lambda b, op, x: operators.activation(b, x, kind, **config)


def binary(function: Callable[..., Operand]) -> Callable[..., Operand]:
    """Handler of a function of two operands."""
    return lambda b, op, x, y: function(b, x, y)


def constant_only(function: Callable[..., Any]) -> Callable[..., Operand]:
    """Handler of an operator that models apply to constants, such as shapes."""

    def handler(b: Builder, op: Operator, *inputs: Operand) -> Operand:
        if any(isinstance(x, Value) for x in inputs):
            raise UnsupportedError("It is applied to a value.", "Constants.")
        return np.asarray(function(*inputs))

    return handler


def arange(start: np.ndarray, limit: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Numbers from `start` to `limit`."""
    first, last, by = (float(x.reshape(())) for x in (start, limit, step))
    if by == 0 or not np.isfinite([first, last, by]).all():
        raise FormatError(f"Numbers from {first} to {last} with steps of {by}: the file is damaged.")
    check_size((max(0, int((last - first) / by)),))
    return np.arange(first, last, by).astype(start.dtype)


def add_n(b: Builder, op: Operator, first: Operand, *others: Operand) -> Operand:
    for other in others:
        first = operators.add(b, first, other)
    return first


def expand_dims(b: Builder, op: Operator, x: Operand, axis: Operand) -> Operand:
    return shapes.unsqueeze(b, x, integers(axis, "axis"))


def transpose(b: Builder, op: Operator, x: Operand, order: Operand) -> Operand:
    return shapes.transpose(b, x, integers(order, "order"))


def split_v(b: Builder, op: Operator, x: Operand, sizes: Operand, axis: Operand) -> tuple[Operand, ...]:
    (place,), parts = integers(axis, "axis"), integers(sizes, "sizes")
    if parts.count(-1) == 1:
        parts[parts.index(-1)] = x.shape[place] - sum(parts) - 1
    return shapes.split(b, x, place, parts)


def slices(b: Builder, op: Operator, x: Operand, begin: Operand, size: Operand) -> Operand:
    return slice_sizes(b, x, integers(begin, "begin"), integers(size, "size"))


def padded(b: Builder, op: Operator, x: Operand, sides: Operand, value: Operand | None = None) -> Operand:
    number = 0.0 if value is None else float(known(value, "value").reshape(()))
    return pad(b, x, known(sides, "paddings"), number)


def power(b: Builder, op: Operator, x: Operand, exponent: Operand) -> Operand:
    return operators.power(b, x, float(known(exponent, "exponent").reshape(())))


def shape_of(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.shape_of(x)


def filled_with(b: Builder, op: Operator, dimensions: Operand, value: Operand) -> Operand:
    return fill(dimensions, value)
