"""A layer's output as the file sees it: reshaped and transposed without moving a value.

The file's axes are products of factors of the layer's shape. An NCHW image of 8 x 8 x 16 is a layer of shape (8, 8, 16)
with the axes ((BATCH,), (2,), (0,), (1,)); flattened it has the axes ((BATCH,), (2, 0, 1)). A channel shuffle splits a
factor in two and swaps the halves. Only an operator that needs another order of the values makes a layer of it: see
`Builder.arrange`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

BATCH = -1
Axis = tuple[int, ...]  # positions in `sizes`, or BATCH; an axis of size 1 is empty


@dataclass(frozen=True)
class Value:
    """An operator's result, or an input of the network.

    Arguments:
    - `layer`: name of the layer that holds the values.
    - `sizes`: factors above 1 of the layer's shape, in the order of memory.
    - `axes`: the file's axes, each a product of factors.
    - `batch`: the file's batch (default 1).
    - `sole`: True while at most one operator reads it.
    """

    layer: str
    sizes: tuple[int, ...]
    axes: tuple[Axis, ...]
    batch: int = 1
    sole: bool = True

    @classmethod
    def of(cls, layer: str, shape: tuple[int, ...], order: tuple[int | None, ...], batch: int = 1) -> Value:
        """A layer of `shape`; `order` has the axis of the layer for each of the file's axes after the batch, None for
        one of size 1 that the layer doesn't have."""
        kept = [axis for axis, n in enumerate(shape) if n > 1]
        axes = tuple((kept.index(axis),) if axis in kept else () for axis in order)
        return cls(layer, tuple(shape[axis] for axis in kept), ((BATCH,), *axes), batch)

    @property
    def shape(self) -> tuple[int, ...]:
        """As in the file, with the batch."""
        return tuple(prod(map(self._size, axis)) for axis in self.axes)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def batch_axis(self) -> int | None:
        """Axis of the batch, None if the file has dropped it or made it a part of another axis."""
        return next((n for n, axis in enumerate(self.axes) if axis == (BATCH,)), None)

    def axis(self, axis: int) -> int:
        """The axis counted from the front."""
        return axis % self.rank

    def transposed(self, order: tuple[int, ...]) -> Value:
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def squeezed(self, axes: tuple[int, ...]) -> Value:
        """Without `axes`, which have size 1."""
        return replace(self, axes=tuple(axis for n, axis in enumerate(self.axes) if n not in axes))

    def inserted(self, axis: int) -> Value:
        """With one more axis of size 1 in front of `axis`, which isn't the batch."""
        return replace(self, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def expanded(self, axis: int) -> Value:
        """With one more axis of size 1 in front of `axis`."""
        return self.reshaped((*self.shape[:axis], 1, *self.shape[axis:])) or self

    def reshaped(self, shape: tuple[int, ...]) -> Value | None:
        """The same values in `shape`, in the file's order; None if the factors can't be regrouped."""
        queue = [(factor, 0, self._size(factor)) for axis in self.axes for factor in axis]
        axes: list[list[tuple[int, int, int]]] = []
        has_batch = self.batch_axis is not None
        for position, n in enumerate(shape):
            axis: list[tuple[int, int, int]] = []
            while n > 1:
                if not queue:
                    return None
                factor, part, size = queue.pop(0)
                if factor == BATCH and size == 1:
                    continue  # the file drops the batch
                if n % size == 0:
                    axis.append((factor, part, size))
                    n //= size
                elif size % n == 0 and factor != BATCH:
                    axis.append((factor, part, n))
                    queue.insert(0, (factor, part + 1, size // n))
                    n = 1
                else:
                    return None
            if not axis and queue and queue[0][0] == BATCH and self.batch == 1:
                axis = [queue.pop(0)]
            elif not axis and not has_batch and position == 0 and self.batch == 1:
                axis = [(BATCH, 0, 1)]
            axes.append(axis)
        if any(factor != BATCH or size > 1 for factor, _, size in queue):
            return None
        parts = sorted({part for axis in axes for part in axis if part[0] != BATCH})
        found = {part: n for n, part in enumerate(parts)}
        regrouped = tuple(tuple(BATCH if p[0] == BATCH else found[p] for p in axis) for axis in axes)
        return replace(self, sizes=tuple(size for _, _, size in parts), axes=regrouped)

    def _size(self, factor: int) -> int:
        return self.batch if factor == BATCH else self.sizes[factor]
