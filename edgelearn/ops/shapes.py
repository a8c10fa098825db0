"""Ops that move values: Reshape, Transpose, Slice, Pad and their like. Most are affine gathers: every coordinate of the
result leads to one of the source, or to none (kernels/gather.cl)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .target import Target
from .tensor import BLOCK, Shape, Tensor, ceil_div
from .window import Pair, pair


def positions(axes: int | tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """Indices of `axes` in the `shape` of an example. Raises ShapeError for axes that it doesn't have, or has twice."""
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    rank = len(shape)
    found = tuple(axis + rank if axis < 0 else axis - 1 for axis in named)
    if any(axis == 0 for axis in named) or any(not 0 <= index < rank for index in found):
        raise ShapeError(
            f"{shape} has axes 1 to {rank}, or -{rank} to -1, but not all of {named}; the batch is axis 0."
        )
    if len(set(found)) < len(found):
        raise ShapeError(f"Some of the axes {named} of {shape} are the same one: name each once.")
    return found


@dataclass(frozen=True)
class Axis:
    """An axis of the result. Coordinate i reads (step * i + begin) / divisor on an axis of the source, if that is whole
    and step * i + begin in [low, high).

    Arguments:
    - `size`: of the result's axis.
    - `source`: index of the source's axis.
    - `high`: as above.
    - `step` (default 1), `begin` (default 0), `divisor` (default 1), `low` (default 0): as above.
    - `clamped`: what lies outside [low, high) reads the nearest in there (default False).
    """

    size: int
    source: int
    high: int
    step: int = 1
    begin: int = 0
    divisor: int = 1
    low: int = 0
    clamped: bool = False

    @classmethod
    def whole(cls, size: int, source: int) -> Axis:
        """An axis of the source as it is."""
        return cls(size, source, size)

    @classmethod
    def repeated(cls, size: int, source: int) -> Axis:
        """An axis of the source of size 1, repeated."""
        return cls(size, source, 1, step=0)


def strides(shape: Shape) -> list[tuple[int, int]]:
    """(rows, channels) that a step along each axis of an example moves."""
    last = len(shape) - 1
    return [(0, 1) if axis == last else (prod(shape[axis + 1 : -1]), 0) for axis in range(len(shape))]


def emit_gather(
    e: Emitter, x: Tensor, axes: Sequence[Axis], target: Target, factor: float = 1.0, fill: float = 0.0
) -> None:
    """Emit target = factor * x gathered along the `axes` of an example, and `fill` where they lead nowhere."""
    y, shape = target.tensor, x.shape[1:]
    stride = strides(shape)
    rows = tuple((a.size, a.step, a.begin, a.divisor, a.low, a.high, int(a.clamped), *stride[a.source]) for a in axes)
    groups, count = e.bands(y.rows, y.blocks)
    e.launch(
        "gather.cl", "gather", (groups, y.blocks), x.read, In(e.table(rows)), y.rows, count, len(axes),
        x.rows // x.images, y.rows // y.images, y.channels, int(_is_aligned(axes[-1], shape)), float(factor),
        float(fill), *target.arguments, **target.macros,
    )  # fmt: skip


def emit_zeros(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = 0: the gradient of an input without one. `x`: any tensor, of which nothing is read."""
    emit_gather(e, x, [Axis(n, 0, 0) for n in target.tensor.shape[1:]], target)


def _is_aligned(channels: Axis, shape: Shape) -> bool:
    """True if every block of the result is one of the source, padding included."""
    end = channels.begin + channels.size
    return (
        channels.source == len(shape) - 1
        and channels.step == channels.divisor == 1
        and channels.begin % BLOCK == 0
        and not channels.clamped
        and channels.low <= channels.begin
        and end <= channels.high
        and (end == shape[-1] or end % BLOCK == 0)
    )


@dataclass(frozen=True)
class Move(Op):
    """Base of ops that move values: each value of the output is one of the input's, or a constant. Its gradient goes
    back to where it came from."""

    selects = True

    def moved(self, x: np.ndarray) -> np.ndarray:
        """The output in NumPy, where constants are 0."""
        raise NotImplementedError

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        """Emit target = the values of `x`, an input of `shape`."""
        raise NotImplementedError

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        """Emit target = the sum of values like the output's that come from each place of an input of `shape`."""
        raise NotImplementedError

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.moved(inputs[0])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        """The numbers of the input's places, moved, say where each value comes from."""
        (x,) = inputs
        total = np.zeros(1 + x.size, dy.dtype)
        np.add.at(total, self.moved(np.arange(1.0, 1 + x.size).reshape(x.shape)).astype(int), dy)
        return [total[1:].reshape(x.shape)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self.emit_move(e, inputs[0], inputs[0].shape[1:], Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        self.emit_back(e, dy, inputs[0].shape[1:], only(targets))

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        self.emit_back(e, y, x.shape[1:], Target(x))


@dataclass(frozen=True)
class Flatten(Move):
    """(..., channels) -> (features,)."""

    has_values = True

    def output_shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), *self.output_shape(x.shape[1:]))

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        _emit_reshaped(e, x, target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        _emit_reshaped(e, y, target)


@dataclass(frozen=True)
class Reshape(Flatten):
    """Changes the shape to `target_shape`, one of whose sizes may be -1, the size that is left."""

    target_shape: tuple[int, ...] = (-1,)

    def output_shape(self, shape: Shape) -> Shape:
        known = prod(n for n in self.target_shape if n != -1)
        sizes_fit = self.target_shape.count(-1) <= 1 and all(n > 0 or n == -1 for n in self.target_shape)
        if not self.target_shape or not sizes_fit or prod(shape) % known:
            raise ShapeError(f"{shape} has {prod(shape)} values, which cannot be reshaped to {self.target_shape}.")
        target = tuple(prod(shape) // known if n == -1 else n for n in self.target_shape)
        if prod(target) != prod(shape):
            raise ShapeError(f"{shape} has {prod(shape)} values, but {self.target_shape} has {prod(target)}.")
        return target


def _emit_reshaped(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = the values of x in the target's shape."""
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks)
    e.launch(
        "reshape.cl", "reshape", (groups, y.blocks), x.read, y.rows, count, x.rows // x.images, x.channels,
        y.rows // y.images, y.channels, *target.arguments, whole=True, **target.macros,
    )  # fmt: skip


@dataclass(frozen=True)
class Transpose(Move):
    """Permutes the axes of an example, as keras.layers.Permute.

    Arguments:
    - `axes`: for each axis of the output, the input's; 1 is the first, as 0 is the batch. (2, 1, 3) swaps height and
      width.

    Raises ShapeError if `axes` doesn't name each axis of the input once.
    """

    axes: tuple[int, ...]

    invertible = True

    def _order(self, shape: Shape) -> tuple[int, ...]:
        order = positions(self.axes, shape)
        if len(order) != len(shape):
            raise ShapeError(f"Transpose names each of the {len(shape)} axes of {shape} once, not {self.axes}.")
        return order

    def output_shape(self, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in self._order(shape))

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, *(axis + 1 for axis in self._order(x.shape[1:])))

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        _emit_permuted(e, x, self._order(shape), target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        order = self._order(shape)
        _emit_permuted(e, y, tuple(order.index(axis) for axis in range(len(order))), target)


def _emit_permuted(e: Emitter, x: Tensor, order: tuple[int, ...], target: Target) -> None:
    """Emit target = x with its axes in this order."""
    emit_gather(e, x, [Axis.whole(x.shape[1 + axis], axis) for axis in order], target)


@dataclass(frozen=True)
class Range:
    """Coordinates `begin`, `begin` + `stride`, ... of an axis, `size` of them."""

    begin: int
    size: int
    stride: int

    @property
    def last(self) -> int:
        return self.begin + (self.size - 1) * self.stride


@dataclass(frozen=True)
class Slice(Move):
    """Some coordinates of each axis: `begin`, `begin` + `stride`, ..., as tf.slice and tf.strided_slice.

    Arguments, a tuple with a number for each axis of an example:
    - `begin`: first coordinate; negative ones count from the end.
    - `size`: number of coordinates of the output; -1: as many as there are.
    - `strides`: steps; negative ones go backwards (default 1).

    Slice((0, -1, 0), (-1, -1, -1), (1, -1, 1)) mirrors images. Raises ShapeError if the input doesn't have these
    coordinates.
    """

    begin: tuple[int, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def ranges(self, shape: Shape) -> list[Range]:
        """The coordinates of each axis of `shape`."""
        strides = self.strides or (1,) * len(shape)
        if not len(self.begin) == len(self.size) == len(strides) == len(shape):
            raise ShapeError(
                f"Slice takes begin, size and strides for each of the {len(shape)} axes of {shape}, not {self.begin}, "
                f"{self.size} and {strides}."
            )
        return [_range(*numbers) for numbers in zip(self.begin, self.size, strides, shape, strict=True)]

    def output_shape(self, shape: Shape) -> Shape:
        return tuple(found.size for found in self.ranges(shape))

    def moved(self, x: np.ndarray) -> np.ndarray:
        ranges = self.ranges(x.shape[1:])
        return x[np.ix_(np.arange(len(x)), *(r.begin + r.stride * np.arange(r.size) for r in ranges))]

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        ranges = zip(self.ranges(shape), shape, strict=True)
        emit_gather(e, x, [Axis(r.size, axis, n, r.stride, r.begin) for axis, (r, n) in enumerate(ranges)], target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        axes = []
        for axis, (r, n) in enumerate(zip(self.ranges(shape), shape, strict=True)):
            sign = 1 if r.stride > 0 else -1
            axes.append(Axis(n, axis, r.size * abs(r.stride), sign, -sign * r.begin, abs(r.stride)))
        emit_gather(e, y, axes, target)


def _range(begin: int, size: int, stride: int, n: int) -> Range:
    """The coordinates of one axis of size `n`."""
    start = begin + n if begin < 0 else begin
    if stride == 0:
        raise ShapeError("A slice's strides are whole numbers other than 0.")
    left = (n - 1 - start) // stride + 1 if stride > 0 else start // -stride + 1
    found = Range(start, left if size == -1 else size, stride)
    if not (0 <= start < n and found.size >= 1 and 0 <= found.last < n):
        raise ShapeError(f"A slice of {size} from {begin} on, by {stride}, is not all within an axis of {n}.")
    return found


MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class Pad(Move):
    """Pads any axes of an example, as keras.ops.pad.

    Arguments:
    - `padding`: (before, after) for each axis.
    - `mode`: `"constant"` (default); `"edge"`, the first and last value; `"reflect"`, mirrored at these; or
      `"symmetric"`, mirrored at the edges, so that the first and last value appear twice.
    - `value`: what a constant padding holds (default 0).

    Raises ShapeError for negative padding, or more than there is to mirror.
    """

    padding: tuple[Pair, ...]
    mode: str = "constant"
    value: float = 0.0

    @property
    def selects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True unless it adds another number than 0."""
        return self.value == 0 or self.mode != "constant"

    def output_shape(self, shape: Shape) -> Shape:
        if self.mode not in MODES:
            raise ShapeError(f"The mode of Pad is one of {', '.join(MODES)}, not '{self.mode}'.")
        if len(self.padding) != len(shape) or any(len(p) != 2 or min(p) < 0 for p in self.padding):
            raise ShapeError(f"Pad takes (before, after), 0 or more, for each axis of {shape}, not {self.padding}.")
        most = [n if self.mode == "symmetric" else n - 1 for n in shape]
        if self.mode in ("reflect", "symmetric") and any(max(p) > n for p, n in zip(self.padding, most, strict=True)):
            raise ShapeError(f"{self.mode} padding of {shape} is at most {most} by axis, not {self.padding}.")
        return tuple(before + n + after for (before, after), n in zip(self.padding, shape, strict=True))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        more = {"constant_values": self.value} if self.mode == "constant" else {}
        return np.pad(inputs[0], ((0, 0), *self.padding), self.mode, **more)  # type: ignore[call-overload]

    def moved(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), *self.padding), self.mode)  # type: ignore[call-overload]

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        pieces = [self._pieces(axis, n) for axis, n in enumerate(shape)]
        _emit_pieces(e, x, pieces, target, self.value if self.mode == "constant" else 0.0)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        inverse = [self._inverse(axis, n) for axis, n in enumerate(shape)]
        many = [axis for axis, pieces in enumerate(inverse) if self.mode == "edge" and len(pieces) > 1]
        for axis in many[:-1]:  # one after the other, since all combinations would be too many
            sizes = (*y.shape[: 1 + axis], shape[axis], *y.shape[2 + axis :])
            inner = e.tensor(f"gradient without padding of axis {axis + 1}", sizes)
            whole = [[Axis.whole(n, other)] for other, n in enumerate(sizes[1:])]
            _emit_pieces(e, y, [*whole[:axis], inverse[axis], *whole[axis + 1 :]], Target(inner), 0.0)
            y, inverse[axis] = inner, [Axis.whole(shape[axis], axis)]
        _emit_pieces(e, y, inverse, target, 0.0)

    def _pieces(self, axis: int, n: int) -> list[Axis]:
        """The axis itself, and, mirrored, what lies before and after it."""
        (before, after), edge = self.padding[axis], int(self.mode == "reflect")
        size = before + n + after
        pieces = [Axis(size, axis, n, 1, -before)]
        if self.mode == "edge":
            return [Axis(size, axis, n, 1, -before, clamped=True)]
        if self.mode != "constant" and before:
            pieces.append(Axis(size, axis, edge + before, -1, before - 1 + edge, low=edge))
        if self.mode != "constant" and after:
            end = n - edge
            pieces.append(Axis(size, axis, end, -1, before + n + end - 1, low=end - after))
        return pieces

    def _inverse(self, axis: int, n: int) -> list[Axis]:
        """Return the slices of the gradient's axis whose sum is the gradient of the input."""
        (before, after), pieces = self.padding[axis], self._pieces(axis, n)
        if self.mode != "edge":
            return [_inverse(piece, n) for piece in pieces]
        end = before + n
        first = [Axis(n, axis, place + 1, 1, place, low=place) for place in range(before)]
        last = [Axis(n, axis, place + 1, 1, place - n + 1, low=place) for place in range(end, end + after)]
        return [Axis(n, axis, end, 1, before, low=before), *first, *last]


def _inverse(piece: Axis, n: int) -> Axis:
    """For each of `n` coordinates of the source, the one of the result that reads it by `piece`, whose step is 1 or
    -1."""
    low, high = sorted((piece.step * (piece.low - piece.begin), piece.step * (piece.high - 1 - piece.begin)))
    return replace(piece, size=n, begin=-piece.step * piece.begin, low=max(low, 0), high=min(high + 1, piece.size))


def _emit_pieces(e: Emitter, x: Tensor, pieces: list[list[Axis]], target: Target, fill: float) -> None:
    """Emit the sum of all combinations of the axes' pieces."""
    for axes in product(*pieces):
        emit_gather(e, x, axes, target, fill=fill)
        target = replace(target, accumulate=True)


@dataclass(frozen=True)
class ZeroPadding2D(Move):
    """Pads (height, width, channels) with zeros, as in Keras.

    Arguments:
    - `padding`: an int for all sides, (vertical, horizontal), or ((top, bottom), (left, right)) (default 1).

    Raises ShapeError for negative padding.
    """

    has_values = True

    padding: int | Pair | tuple[Pair, Pair] = 1

    @property
    def sides(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right))"""
        vertical, horizontal = (self.padding,) * 2 if isinstance(self.padding, int) else self.padding
        return pair(vertical), pair(horizontal)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"ZeroPadding2D takes (height, width, channels), not {shape}.")
        if min(map(min, self.sides)) < 0:
            raise ShapeError(f"Padding is 0 or more on every side, not {self.padding}.")
        vertical, horizontal = self.sides
        return (shape[0] + sum(vertical), shape[1] + sum(horizontal), shape[2])

    def moved(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), *self.sides, (0, 0)))

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        (top, _), (left, _) = self.sides
        _emit_moved_image(e, x, -top, -left, target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        (top, _), (left, _) = self.sides
        _emit_moved_image(e, y, top, left, target)


def _emit_moved_image(e: Emitter, x: Tensor, down: int, right: int, target: Target) -> None:
    """Emit target at (y, x) = x at (y + down, x + right), or 0 outside x."""
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks, 64)
    e.launch(
        "zero_padding.cl", "move_image", (groups, y.blocks), x.read, y.rows, count, x.height, x.width, y.height,
        y.width, down, right, *target.arguments, **target.macros,
    )  # fmt: skip


@dataclass(frozen=True)
class SliceChannels(Move):
    """Channels `start` to `start` + `size` - 1. Raises ShapeError if the input doesn't have them."""

    has_values = True

    start: int
    size: int

    def output_shape(self, shape: Shape) -> Shape:
        if self.start < 0 or self.size < 1 or self.start + self.size > shape[-1]:
            raise ShapeError(f"{self.size} channels from {self.start} on are not all among the {shape[-1]} there are.")
        return (*shape[:-1], self.size)

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x[..., self.start : self.start + self.size]

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        _emit_moved_channels(e, x, self.start, target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        _emit_moved_channels(e, y, -self.start, target)


@dataclass(frozen=True)
class PadChannels(Move):
    """Adds channels of zeros: `before` in front of the input's channels, `after` at the end."""

    has_values = True

    before: int = 0
    after: int = 0

    def output_shape(self, shape: Shape) -> Shape:
        if min(self.before, self.after) < 0:
            raise ShapeError(f"PadChannels adds 0 or more channels on each side, not {self.before} and {self.after}.")
        return (*shape[:-1], self.before + shape[-1] + self.after)

    def moved(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(self.before, self.after)])

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        _emit_moved_channels(e, x, -self.before, target)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        _emit_moved_channels(e, y, self.before, target)


def _emit_moved_channels(e: Emitter, x: Tensor, shift: int, target: Target) -> None:
    """Emit channel c of target = channel c + shift of x, or 0."""
    y = target.tensor
    first, stop = 0, y.blocks
    if target.accumulate and not target.masks_sum:  # outside of these blocks, zeros would be added
        first, stop = max(0, -shift) // BLOCK, min(stop, ceil_div(x.channels - shift, BLOCK))
    groups, count = e.bands(y.rows, stop - first)
    e.launch(
        "channels.cl", "move_channels", (groups, stop - first), x.read, y.rows, count, first, x.channels, y.channels,
        shift, *target.arguments, whole=True, **target.macros,
    )  # fmt: skip


@dataclass(frozen=True)
class SpaceToDepth(Move):
    """Each square of `size` x `size` pixels becomes one pixel that has all their channels, pixel by pixel as in
    TensorFlow: the invertible down-sampling of Jacobsen et al. 2018, "i-RevNet" (arXiv 1802.07088, figure 2)."""

    size: int = 2

    invertible = True

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or self.size < 1 or shape[0] % self.size or shape[1] % self.size:
            raise ShapeError(
                f"SpaceToDepth takes (height, width, channels) whose height and width {self.size} divides, not {shape}."
            )
        return (shape[0] // self.size, shape[1] // self.size, shape[2] * self.size**2)

    def moved(self, x: np.ndarray) -> np.ndarray:
        n, height, width, _ = x.shape
        squares = x.reshape(n, height // self.size, self.size, width // self.size, self.size, -1).swapaxes(2, 3)
        return squares.reshape(n, height // self.size, width // self.size, -1)

    def emit_move(self, e: Emitter, x: Tensor, shape: Shape, target: Target) -> None:
        self._emit(e, x, target, back=False)

    def emit_back(self, e: Emitter, y: Tensor, shape: Shape, target: Target) -> None:
        self._emit(e, y, target, back=True)

    def _emit(self, e: Emitter, x: Tensor, target: Target, back: bool) -> None:
        y = target.tensor
        groups, count = e.bands(y.rows, y.blocks)
        e.launch(
            "space_to_depth.cl", "space_to_depth", (groups, y.blocks), x.read, y.rows, count, y.height, y.width,
            y.channels, x.channels, self.size, *target.arguments, whole=True, back=back, **target.macros,
        )  # fmt: skip
