"""Split: a slice for each part of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgelearn.errors import ShapeError
from edgelearn.ops import Slice
from edgelearn.ops.axes import positions

from .network import Network


def add_split(
    network: Network, name: str, parts: int | Sequence[int], x: str | None = None, axis: int = -1
) -> list[str]:
    """Add layers "`name`_1", "`name`_2", ... that divide a tensor, and return their names. An op has one output, so
    each part is a Slice.

    Arguments:
    - `network`: to add the layers to.
    - `name`: begins their names.
    - `parts`: number of equal parts, or the size of each.
    - `x`: name of the layer to divide (default: the last one).
    - `axis`: of an example; 1 is the first, as 0 is the batch (default -1, the channels).

    Raises ShapeError if the parts don't add up to the axis.
    """
    x = network.output.name if x is None else x
    shape = network.shape_of(x)
    (index,) = positions(axis, shape)
    n = shape[index]
    if isinstance(parts, int) and (parts < 1 or n % parts):
        raise ShapeError(f"An axis of {n} has no {parts} equal parts: give the size of each.")
    sizes = [n // parts] * parts if isinstance(parts, int) else list(parts)
    if sum(sizes) != n:
        raise ShapeError(f"Parts of {sizes} are {sum(sizes)} in all, but the axis of '{x}' has {n}.")
    names = []
    for number, (begin, size) in enumerate(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True), start=1):
        begins, counts = [0] * len(shape), [-1] * len(shape)
        begins[index], counts[index] = begin, size
        names.append(network.add(f"{name}_{number}", Slice(tuple(begins), tuple(counts)), x))
    return names
