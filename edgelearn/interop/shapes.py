"""Reshape, Transpose, Concatenate and their like for handlers. Most of them only change how a value is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import BroadcastTo, Concatenate, Constant, Embedding, Op, Slice, SliceChannels, Take

from .builder import BATCH, Axis, Builder, Value, check_size, filled

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


def turn(b: Builder, x: Operand) -> Operand:
    """The last two axes swapped."""
    rank = len(x.shape)
    return transpose(b, x, (*range(rank - 2), rank - 1, rank - 2))


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


def expand(b: Builder, x: Operand, shape: Sequence[int]) -> Operand:
    """Sizes of 1, and axes that are missing in front, repeated as NumPy does."""
    try:
        wanted = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))
    except ValueError:
        raise UnsupportedError(f"{x.shape} is repeated to {tuple(shape)}.", "Sizes of 1.") from None
    if isinstance(x, np.ndarray):
        return filled(wanted, x)
    while x.rank < len(wanted):
        x = x.expanded(0)
    if wanted == x.shape:
        return x
    if x.batch_axis is not None and wanted[x.batch_axis] != x.shape[x.batch_axis]:
        raise UnsupportedError(f"{x.shape} is repeated to {wanted}: that repeats the batch.", "Axes of an example.")
    runs: list[list[int]] = []  # neighbours that are repeated, or not, as one axis
    repeated = [n != size for n, size in zip(wanted, x.shape, strict=True)]
    sizes, places = [], {}
    for axis in b.natural_order(x):
        if runs and repeated[runs[-1][-1]] == repeated[axis]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
        factors = [wanted[axis]] if repeated[axis] else [x.sizes[factor] for factor in x.axes[axis]]
        places[axis] = tuple(range(len(sizes), len(sizes) + len(factors)))
        sizes += factors
    layer = b.arrange(x, *(tuple(factor for axis in run for factor in x.axes[axis]) for run in runs))
    layer = b.add(BroadcastTo(tuple(prod(wanted[axis] for axis in run) for run in runs)), layer)
    axes = tuple((BATCH,) if axis == x.batch_axis else places[axis] for axis in range(x.rank))
    found = Value(layer, tuple(sizes), axes, x.batch)
    b.repeated[layer] = (found, x)
    return found


def concatenate(b: Builder, values: Sequence[Operand], axis: int) -> Operand:
    """Values one behind the other along an axis."""
    if all(isinstance(x, np.ndarray) for x in values):
        return np.concatenate([np.atleast_1d(x) for x in values], axis)  # type: ignore[arg-type]
    if len(values) == 1:
        return values[0]
    first = next(x for x in values if isinstance(x, Value))
    values = [_beside(b, x, first) if isinstance(x, np.ndarray) else x for x in values]
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


def gather(b: Builder, x: Operand, indices: Operand, axis: int) -> Operand:
    """The elements of an axis that `indices` lists, computed ones, too; one constant index takes the axis away. A
    constant by computed indices is an Embedding, which is trained."""
    axis %= len(x.shape)
    if isinstance(indices, Value):
        return _embedded(b, x, indices, axis) if isinstance(x, np.ndarray) else _taken(b, x, indices, axis)
    if isinstance(x, np.ndarray):
        check_size((*indices.shape, *x.shape), x)
        return np.take(x, indices, axis)
    if indices.ndim > 1 or indices.size != 1:
        return _listed(b, x, indices, axis)
    index = int(indices.reshape(-1)[0]) % x.shape[axis]
    part = slice_axis(b, x, axis, index, index + 1)
    return part if indices.ndim else squeeze(b, part, [axis])


def _beside(b: Builder, constant: np.ndarray, like: Value) -> Value:
    """A constant that is concatenated to values: one for all examples."""
    if like.batch_axis is not None:
        constant = constant[(slice(None),) * like.batch_axis + (slice(0, 1),)]  # a file repeats it for its batch
    return b.constant(np.asarray(constant, np.float32), like)


def _embedded(b: Builder, table: np.ndarray, indices: Value, axis: int) -> Value:
    """Rows of a constant by computed numbers."""
    rows = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
    layer = b.add(Embedding(*rows.shape), _numbers(b, indices), weights={"embeddings": rows})
    kept = tuple(n for a, n in enumerate(table.shape) if a != axis)
    return _indexed(layer, indices.shape, indices.batch_axis, kept, None, axis, indices.batch)


def _taken(b: Builder, x: Value, indices: Value, axis: int) -> Value:
    """Elements of an axis by computed numbers, of each example by itself."""
    if x.batch > 1:
        raise UnsupportedError(f"Elements of {x.shape} by computed numbers of all examples.", "A batch of 1.")
    return _rows(b, x, _numbers(b, indices), indices.shape, indices.batch_axis, axis)


def _listed(b: Builder, x: Value, indices: np.ndarray, axis: int) -> Value:
    """Elements of an axis that a constant lists."""
    numbers = indices.reshape(-1) % x.shape[axis]
    layer = b.add(Constant(numbers.shape), x.layer, weights={"value": numbers}, frozen=("value",),
                  name=f"{b.operator.name}_indices")  # fmt: skip
    return _rows(b, x, layer, indices.shape, None, axis)


def _numbers(b: Builder, indices: Value) -> str:
    """A layer of computed numbers in a row."""
    axes = (axis for n, axis in enumerate(indices.axes) if n != indices.batch_axis)
    return b.arrange(indices, tuple(factor for axis in axes for factor in axis))


def _rows(
    b: Builder, x: Value, numbers: str, shape: tuple[int, ...], batch_axis: int | None, axis: int
) -> Value:  # fmt: skip
    """Elements of an axis by the layer `numbers`, which the file sees as `shape`."""
    if axis == x.batch_axis:
        raise UnsupportedError(f"Elements of axis {axis} of {x.shape}, which is the batch's.", "Another axis.")
    rest = [a for a in range(x.rank) if a not in (axis, x.batch_axis)]
    layer = b.add(Take(), b.laid_out(x, [axis, *(rest or [None])]), numbers)
    kept = tuple(n for a, n in enumerate(x.shape) if a != axis)
    batch = None if x.batch_axis is None else x.batch_axis - (x.batch_axis > axis)
    return _indexed(layer, shape, batch_axis if batch is None else None, kept, batch, axis, x.batch)


def _indexed(
    layer: str, shape: tuple[int, ...], batch_axis: int | None, kept: tuple[int, ...], kept_batch: int | None,
    axis: int, batch: int,
) -> Value:  # fmt: skip
    """The value of a layer whose axes are those of `shape` and `kept`; the file has those of `shape` before the axis
    `axis` of `kept`. `batch_axis`, `kept_batch`: of the batch, of size `batch`."""
    sizes: list[int] = []

    def axes(numbers: tuple[int, ...], batch_axis: int | None) -> list[Axis]:
        found: list[Axis] = []
        for place, n in enumerate(numbers):
            own = place != batch_axis and n > 1
            found.append((BATCH,) if place == batch_axis else (len(sizes),) if own else ())
            sizes.extend([n] if own else [])
        return found

    first, rest = axes(shape, batch_axis), axes(kept, kept_batch)
    return Value(layer, tuple(sizes), (*rest[:axis], *first, *rest[axis:]), batch)


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
