"""Meanings of operators that move values: Reshape, Transpose, Concatenate and their like, with constants of a file.

Most of them only change how a value is seen. Operands come first, settings are keyword arguments, as in `operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import (
    BroadcastTo,
    Concatenate,
    Constant,
    Embedding,
    Op,
    Reshape,
    Slice,
    SliceChannels,
    Stream,
    Take,
)

from .builder import BATCH, Axis, Builder, Operand, Value, check_size, filled, runs, with_rank

Array = np.ndarray  # a constant


def shape_of(b: Builder, x: Operand) -> np.ndarray:
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


def flatten(b: Builder, x: Operand, *, start: int = 1, end: int = -1) -> Operand:
    """The axes from `start` to `end` as one."""
    start, end = start % len(x.shape), end % len(x.shape)
    return reshape(b, x, (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def transpose(b: Builder, x: Operand, order: Sequence[int] | None = None) -> Operand:
    """The axes in another order (default: the last first)."""
    order = tuple(int(axis) % len(x.shape) for axis in order or range(len(x.shape))[::-1])
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
        if isinstance(x, np.ndarray):
            x = np.expand_dims(x, axis)
        else:
            x = x.expanded(axis) if x.batch_axis is None else x.inserted(axis)
    return x


def expand(b: Builder, x: Operand, shape: Sequence[int]) -> Operand:
    """Sizes of 1, and axes that are missing in front, repeated as NumPy does."""
    try:
        wanted = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))
    except ValueError:
        raise UnsupportedError(f"{x.shape} is repeated to {tuple(shape)}.", "Sizes of 1.") from None
    if isinstance(x, np.ndarray):
        return filled(wanted, x)
    x = with_rank(x, len(wanted))
    if wanted == x.shape:
        return x
    if x.batch_axis is not None and wanted[x.batch_axis] != x.shape[x.batch_axis]:
        raise UnsupportedError(f"{x.shape} is repeated to {wanted}: that repeats the batch.", "Axes of an example.")
    repeated = [n != size for n, size in zip(wanted, x.shape, strict=True)]
    groups = runs(b.natural_order(x), lambda a, z: repeated[a] == repeated[z])
    sizes, places = [], {}
    for axis in b.natural_order(x):
        factors = [wanted[axis]] if repeated[axis] else [x.sizes[factor] for factor in x.axes[axis]]
        places[axis] = tuple(range(len(sizes), len(sizes) + len(factors)))
        sizes += factors
    layer = b.arrange(x, *(tuple(factor for axis in group for factor in x.axes[axis]) for group in groups))
    layer = b.add(BroadcastTo(tuple(prod(wanted[axis] for axis in group) for group in groups)), layer)
    axes = tuple((BATCH,) if axis == x.batch_axis else places[axis] for axis in range(x.rank))
    found = Value(layer, tuple(sizes), axes, x.batch)
    b.repeated[layer] = (found, x)
    return found


def concatenate(b: Builder, values: Sequence[Operand], *, axis: int = -1) -> Operand:
    """Values one after another along an axis."""
    if all(isinstance(x, np.ndarray) for x in values):
        return np.concatenate([np.atleast_1d(x) for x in values], axis)  # type: ignore[arg-type]
    if len(values) == 1:
        return values[0]
    first = next(x for x in values if isinstance(x, Value))
    values = [_beside(b, x, first) if isinstance(x, np.ndarray) else x for x in values]
    if (rows := _stacked(b, values, axis % first.rank)) is not None:  # type: ignore[arg-type]
        return rows
    order = with_last(b, first, axis)
    return b.view(first, b.add(Concatenate(), *(b.laid_out(x, order) for x in values)), order)  # type: ignore[arg-type]


def _stacked(b: Builder, values: Sequence[Value], axis: int) -> Value | None:
    """Vectors as the rows of a layer, or the layer whose rows they were, all of them in order. None if the values have
    other sizes of `axis` than 1, which isn't the batch's, or are no vectors along a later axis."""
    first = values[0]
    longer = [n for n in range(first.rank) if n != first.batch_axis and any(x.shape[n] > 1 for x in values)]
    if axis == first.batch_axis or len(longer) != 1 or axis >= longer[0]:
        return None
    order = (axis, longer[0])
    layers = [b.laid_out(x, order) for x in values]
    makers = [b.layers.get(layer) for layer in layers]
    sources = {maker.inputs if maker else () for maker in makers}
    begins = [maker.op.begin if maker and isinstance(maker.op, Slice) else () for maker in makers]
    layer = (sources.pop() or ("",))[0]
    whole = (len(values), first.shape[longer[0]])
    if sources or begins != [(n, 0) for n in range(len(values))] or b.shape(layer) != whole:
        layer = b.add(Reshape(whole), b.add(Concatenate(), *layers), name=f"{b.operator.name}_rows")
    return b.view(first, layer, order)


def slice_axis(
    b: Builder, x: Operand, axis: int, start: int | None = None, end: int | None = None, step: int = 1
) -> Operand:
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
    return b.apply(op, x, order)


def split(b: Builder, x: Operand, sizes: Sequence[int], *, axis: int = 0) -> tuple[Operand, ...]:
    """Parts of an axis, one after another; of one size, -1, all that is left."""
    if list(sizes).count(-1) == 1:
        sizes = [x.shape[axis] - sum(sizes) - 1 if n == -1 else n for n in sizes]
    ends = np.cumsum([int(n) for n in sizes])
    if min(sizes, default=0) < 0 or not len(ends) or ends[-1] != x.shape[axis]:
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': sizes {tuple(sizes)} of an axis of {x.shape[axis]}.")
    return tuple(slice_axis(b, x, axis, int(end) - int(n), int(end)) for n, end in zip(sizes, ends, strict=True))


def halves(b: Builder, x: Operand, *, count: int, axis: int) -> tuple[Operand, ...]:
    """Equal parts of an axis."""
    if count < 1 or x.shape[axis] % count:
        raise FormatError(f"{b.operator.kind} '{b.operator.name}': {count} parts of {x.shape}. The file is damaged.")
    return split(b, x, [x.shape[axis] // count] * count, axis=axis)


def pieces(b: Builder, x: Operand, *, size: int, axis: int) -> tuple[Operand, ...]:
    """Parts of an axis of this size, the last of what is left."""
    n = x.shape[axis]
    return split(b, x, [size] * (n // size) + ([n % size] if n % size else []), axis=axis)


def part(b: Builder, x: Operand, begin: Sequence[int], size: Sequence[int]) -> Operand:
    """`size` elements from `begin` on, for each axis; -1 is all of them."""
    for axis, (first, count) in enumerate(zip(begin, size, strict=True)):
        x = slice_axis(b, x, axis, first, x.shape[axis] if count == -1 else first + count)
    return x


def strided_slice(
    b: Builder, x: Operand, begin: Sequence[int], end: Sequence[int], strides: Sequence[int], *,
    masks: Mapping[str, Any],
) -> Operand:  # fmt: skip
    """x[begin:end:strides]; `masks`: bits for each place, as of tf.strided_slice. With `masks["offset"]` an end is
    counted from its begin."""
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
            x = slice_axis(b, x, axis, first % n, first % n + 1)
            continue
        if step == 0:
            raise FormatError(f"{b.operator.kind} '{b.operator.name}' has steps of 0: the file is damaged.")
        start = None if bits["begin"] >> axis & 1 else first
        stop = None if bits["end"] >> axis & 1 else last + first * bool(masks.get("offset"))
        x = slice_axis(b, x, axis, start, stop, step)
    return squeeze(b, x, dropped) if dropped else x


def pack(b: Builder, values: Sequence[Operand], *, axis: int = 0) -> Operand:
    """Values as slices of a new axis."""
    if all(isinstance(x, np.ndarray) for x in values):
        return np.stack(values, axis)  # type: ignore[arg-type]
    axis %= len(values[0].shape) + 1
    parts = [x.inserted(axis) if isinstance(x, Value) else np.expand_dims(x, axis) for x in values]
    return concatenate(b, parts, axis=axis)


def unpack(b: Builder, x: Operand, *, axis: int = 0) -> tuple[Operand, ...]:
    """The slices of an axis."""
    axis %= len(x.shape)
    check_size((x.shape[axis],))
    return tuple(squeeze(b, part, [axis]) for part in split(b, x, [1] * x.shape[axis], axis=axis))


def tile(b: Builder, x: Operand, counts: Sequence[int]) -> Operand:
    """Each axis so many times."""
    sizes = [n * count for n, count in zip(x.shape, counts, strict=True)]
    if isinstance(x, np.ndarray):
        check_size(tuple(sizes))
        return np.tile(x, counts)
    for axis, count in enumerate(counts):
        if count > 1 and x.shape[axis] > 1:
            x = concatenate(b, [x] * count, axis=axis)
    return expand(b, x, sizes)


def depth_to_space(b: Builder, x: Operand, *, block: int, channels: int = -1, pixels_first: bool = True) -> Operand:
    """Channels become pixels, in blocks of `block` x `block`. `pixels_first`: the pixels of a block come before its
    channels in the file's order."""
    s = max(block, 1)
    if channels == -1:
        n, h, w, c = x.shape
        y = transpose(b, reshape(b, x, (n, h, w, s, s, c // s**2)), (0, 1, 3, 2, 4, 5))
        return reshape(b, y, (n, h * s, w * s, c // s**2))
    n, c, h, w = x.shape
    sizes, order = ((s, s, c // s**2), (0, 3, 4, 1, 5, 2)) if pixels_first else ((c // s**2, s, s), (0, 1, 4, 2, 5, 3))
    return reshape(b, transpose(b, reshape(b, x, (n, *sizes, h, w)), order), (n, c // s**2, h * s, w * s))


def space_to_depth(b: Builder, x: Operand, *, block: int, channels: int = -1) -> Operand:
    """Blocks of `block` x `block` pixels become channels, pixels first."""
    s = max(block, 1)
    n, h, w, c = x.shape if channels == -1 else (x.shape[axis] for axis in (0, 2, 3, 1))
    if channels == -1:
        y = transpose(b, reshape(b, x, (n, h // s, s, w // s, s, c)), (0, 1, 3, 2, 4, 5))
        return reshape(b, y, (n, h // s, w // s, c * s**2))
    y = transpose(b, reshape(b, x, (n, c, h // s, s, w // s, s)), (0, 3, 5, 1, 2, 4))
    return reshape(b, y, (n, c * s**2, h // s, w // s))


def fill(b: Builder, shape: Sequence[int], value: Array) -> Operand:
    """A constant of one number."""
    return filled(tuple(shape), value.reshape(()))


def arange(b: Builder, start: Array, limit: Array, step: Array) -> Operand:
    """Numbers from `start` to `limit`."""
    first, last, by = (float(x.reshape(())) for x in (start, limit, step))
    if by == 0 or not np.isfinite([first, last, by]).all():
        raise FormatError(f"Numbers from {first} to {last} with steps of {by}: the file is damaged.")
    check_size((max(0, int((last - first) / by)),))
    return np.arange(first, last, by).astype(start.dtype)


def folded(b: Builder, x: Array, others: Sequence[Operand] = (), *, function: Callable[..., Any]) -> Operand:
    """A function that files apply to constants alone."""
    return np.asarray(function(x))


product, ceil, floor = (partial(folded, function=function) for function in (np.prod, np.ceil, np.floor))


def gather(b: Builder, x: Operand, indices: Operand, *, axis: int = 0, batch_dims: int = 0) -> Operand:
    """The elements of an axis that `indices` lists, computed ones, too; one constant index takes the axis away. A
    constant by computed indices is an Embedding, which is trained. `batch_dims`: 1 if each example has own indices."""
    axis %= len(x.shape)
    if batch_dims:
        both = [v for v in (x, indices) if isinstance(v, Value) and v.batch_axis == 0]
        if len(both) < 2 or batch_dims != 1 or axis == 0:
            raise UnsupportedError(f"batch_dims={batch_dims} for axis {axis} of {x.shape}.", "0, or 1 for axis 1 on.")
        return _rows(b, both[0], _numbers(b, both[1]), indices.shape[1:], None, axis)
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
    """A layer of computed numbers in a row, not rounded: that is part of taking rows."""
    before = b.maker(indices)
    indices = replace(indices, layer=before.inputs[0]) if before and before.op == Stream(1.0) else indices
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


def with_last(b: Builder, x: Value, axis: int) -> list[int]:
    """The axes of a layer of `x`, with the given one at the end. Raises UnsupportedError if it is the batch's."""
    axis = x.axis(axis)
    if axis == x.batch_axis:
        raise UnsupportedError("The axis is the batch's.", "Another axis.")
    return [*(n for n in b.natural_order(x) if n != axis), axis]
