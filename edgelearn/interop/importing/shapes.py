"""Reshape, Transpose, Concatenate and their like for handlers. Most of them only change how a value is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Concatenate, Op, Slice, SliceChannels

from .builder import Builder, check_size
from .value import Value

Operand = Value | np.ndarray


def shape_of(x: Operand) -> np.ndarray:
    """The shape as a constant; an open batch counts as 1."""
    return np.array(x.shape, np.int64)


def reshape(b: Builder, x: Operand, shape: Sequence[int]) -> Operand:
    """The same values in another shape, one of whose sizes may be -1."""
    shape, count = [int(n) for n in shape], prod(x.shape)
    known = prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and count % known == 0:
        shape = [count // known if n == -1 else n for n in shape]
    if prod(shape) != count or min(shape, default=1) < 0:
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': {x.shape} can't be reshaped to {tuple(shape)}.")
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    if tuple(shape) == x.shape:
        return x
    seen = x.reshaped(tuple(shape)) or in_order(b, x).reshaped(tuple(shape))
    if seen is None:
        raise UnsupportedError(f"{x.shape} to {tuple(shape)} mixes the batch with other axes.", "Keep the batch apart.")
    return seen


def flatten(b: Builder, x: Operand, start: int = 1, end: int = -1) -> Operand:
    """The axes from `start` to `end` as one."""
    start, end = start % len(x.shape), end % len(x.shape)
    return reshape(b, x, (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def transpose(b: Builder, x: Operand, order: Sequence[int]) -> Operand:
    """The axes in another order."""
    order = tuple(int(axis) % len(x.shape) for axis in order)
    if sorted(order) != list(range(len(x.shape))):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': {order} is no order of the axes of {x.shape}.")
    return x.transpose(order) if isinstance(x, np.ndarray) else x.transposed(order)


def squeeze(b: Builder, x: Operand, axes: Sequence[int] | None = None) -> Operand:
    """Without axes of size 1 (default: all of them)."""
    rank = len(x.shape)
    chosen = [n for n in range(rank) if x.shape[n] == 1] if axes is None else [int(axis) % rank for axis in axes]
    if any(x.shape[axis] != 1 for axis in chosen):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': axes {chosen} of {x.shape} are not all of size 1.")
    return x.squeeze(tuple(chosen)) if isinstance(x, np.ndarray) else x.squeezed(tuple(chosen))


def unsqueeze(b: Builder, x: Operand, axes: Sequence[int]) -> Operand:
    """With axes of size 1 at these places of the result."""
    rank = len(x.shape) + len(axes)
    for axis in sorted(int(axis) % rank for axis in axes):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.expanded(axis)
    return x


def concatenate(b: Builder, values: Sequence[Operand], axis: int) -> Operand:
    """Values one behind the other along an axis."""
    if all(isinstance(x, np.ndarray) for x in values):
        return np.concatenate([np.atleast_1d(x) for x in values], axis)  # type: ignore[arg-type]
    if any(isinstance(x, np.ndarray) for x in values):
        raise UnsupportedError("A constant is concatenated to a value.")
    if len(values) == 1:
        return values[0]
    first: Value = values[0]  # type: ignore[assignment]
    order = list(_with_last(b, first, axis))
    return b.view(first, b.add(Concatenate(), *(b.laid_out(x, order) for x in values)), order)  # type: ignore[arg-type]


def slice_axis(b: Builder, x: Operand, axis: int, start: int | None, end: int | None, step: int = 1) -> Operand:
    """Part of an axis, as Python's start:end:step."""
    axis %= len(x.shape)
    chosen = range(*slice(start, end, step).indices(x.shape[axis]))
    if isinstance(x, np.ndarray):
        return x[(slice(None),) * axis + (slice(start, end, step),)]
    if list(chosen) == list(range(x.shape[axis])):
        return x
    if axis == x.batch_axis or not len(chosen):
        raise UnsupportedError(f"Elements {start}:{end}:{step} of axis {axis} of {x.shape}.", "One element or more.")
    order = b.natural_order(x)
    if order[-1] == axis and step == 1:
        op: Op = SliceChannels(chosen[0], len(chosen))
    else:
        numbers = [(chosen[0], len(chosen), step) if place == axis else (0, -1, 1) for place in order]
        op = Slice(*zip(*numbers, strict=True))
    return b.view(x, b.add(op, b.laid_out(x, order)), order)


def split(b: Builder, x: Operand, axis: int, sizes: Sequence[int]) -> tuple[Operand, ...]:
    """Parts of an axis, one behind the other."""
    ends = np.cumsum([int(n) for n in sizes])
    if min(sizes, default=0) < 0 or not len(ends) or ends[-1] != x.shape[axis]:
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': sizes {tuple(sizes)} of an axis of {x.shape[axis]}.")
    return tuple(slice_axis(b, x, axis, int(end) - int(n), int(end)) for n, end in zip(sizes, ends, strict=True))


def gather(b: Builder, x: Operand, indices: np.ndarray, axis: int) -> Operand:
    """The elements of an axis that `indices` lists; one index takes the axis away."""
    if isinstance(x, np.ndarray):
        check_size((*indices.shape, *x.shape))
        return np.take(x, indices, axis)
    if indices.ndim > 1 or indices.size != 1:
        raise UnsupportedError(f"Gather of {indices.size} elements.", "Slice or Split.")
    index = int(indices.reshape(-1)[0]) % x.shape[axis]
    part = slice_axis(b, x, axis, index, index + 1)
    return part if indices.ndim else squeeze(b, part, [axis])


def in_order(b: Builder, x: Value) -> Value:
    """The value in a layer that has its values in the file's order, as one axis."""
    if x.batch_axis not in (0, None):
        return x
    order = [axis for axis in range(x.rank) if axis != x.batch_axis]
    factors = tuple(factor for axis in order for factor in x.axes[axis])
    layer = b.arrange(x, factors)
    flat = Value.of(layer, (prod(x.sizes),), (0,), x.batch)
    return flat if x.batch_axis == 0 else replace(flat, axes=flat.axes[1:])


def _with_last(b: Builder, x: Value, axis: int) -> list[int]:
    """The axes of a layer of `x`, with the given one at the end."""
    axis = x.axis(axis)
    if axis == x.batch_axis:
        raise UnsupportedError("The axis is the batch's.", "Another axis.")
    return [*(n for n in b.natural_order(x) if n != axis), axis]
