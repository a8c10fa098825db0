"""Sparse tensors of TFLite files: the places of the values that the file has.

A tensor of rank n with k blocked axes is stored as one of rank n + k: levels in `traversal_order`, where levels below n
are the axes, divided by their blocks, and level n + b lies inside the blocks of axis `block_map[b]`. A level is DENSE,
or SPARSE_CSR: `segments` delimits the `indices` of each element of the level before it.
Schema: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

from math import prod

import numpy as np

from .flatbuffer import Table

VECTORS = {1: "<i4", 2: "<u2", 3: "u1"}  # the union SparseIndexVector
DENSE, SPARSE_CSR = 0, 1


def places(record: Table, shape: tuple[int, ...]) -> np.ndarray:
    """Return the flat place of each stored value in the dense tensor. Raises FormatError for a damaged record.

    Arguments:
    - `record`: the tensor's SparsityParameters.
    - `shape`: of the dense tensor.
    """
    order, blocked = record.integers(0), record.integers(1)
    levels = record.tables(2, f"level of {record.what}")
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        raise _damaged(record, f"its levels {order} of {len(levels)} aren't those of the shape {shape}")
    if any(not 0 <= axis < rank for axis in blocked) or len(set(blocked)) < len(blocked):
        raise _damaged(record, f"its blocks are of the axes {blocked}")
    blocks = [1] * rank
    for axis, level in ((blocked[n - rank], levels[place]) for place, n in enumerate(order) if n >= rank):
        blocks[axis] = level.number(1, "i")
    if any(block < 1 or n % block for n, block in zip(shape, blocks, strict=True)):
        raise _damaged(record, f"blocks of {tuple(blocks)} don't fill the shape {shape}")
    found = np.zeros(1, np.int64)
    for n, level in zip(order, levels, strict=True):
        axis = n if n < rank else blocked[n - rank]
        size = shape[axis] // blocks[axis] if n < rank else blocks[axis]
        stride = prod(shape[axis + 1 :]) * (blocks[axis] if n < rank else 1)
        parents, indices = _children(level, len(found), size, prod(shape))
        found = found[parents] + indices * stride
    return found


def _children(level: Table, count: int, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Each element of a level: the number of the one before it, of `count`, and its index, below `size`."""
    if level.number(0, "b") == DENSE:
        if level.number(1, "i") != size or count * size > most:
            raise _damaged(level, f"it has {level.number(1, 'i'):,} elements each, not {size:,}")
        return np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
    segments, indices = (_vector(level, field) for field in (2, 4))
    lengths = np.diff(segments)
    if len(lengths) != count or segments[0] or (lengths < 0).any() or segments[-1] != len(indices):
        raise _damaged(level, f"its segments don't delimit {len(indices):,} indices of {count:,} elements")
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        raise _damaged(level, f"an index lies outside an axis of {size:,}")
    return np.repeat(np.arange(count), lengths), indices


def _vector(level: Table, field: int) -> np.ndarray:
    """The vector of a union whose type is field `field`."""
    kind, table = level.number(field, "B"), level.table(field + 1, level.what)
    if level.number(0, "b") != SPARSE_CSR or kind not in VECTORS or table is None:
        raise _damaged(level, "it is neither dense nor has segments and indices")
    return table.array(0, VECTORS[kind]).astype(np.int64)


def _damaged(table: Table, reason: str) -> Exception:
    return table.buffer.damaged(f"{table.what}: {reason}")
