"""Kernels that go through the memory of a tensor, whatever its shape: see kernels/include/rows.h."""

from __future__ import annotations

from math import prod

from edgelearn.launch import Access

from .emit import Emitter
from .range_statistics import RangeStatistics
from .tensor import Tensor, ceil_div

GROUP_SIZE_GPU = 256  # work-items of a GPU's work-group, which write one record of statistics
GROUPS_GPU, GROUPS_CPU = 4, 8  # work-groups a compute unit, of which each reads at least
LEAST = 1024  # floats


def split(e: Emitter, x: Tensor, groups: int = 0) -> tuple[int, int, int]:
    """(rows, floats of the last row if it isn't full, work-groups), where a row is the floats that a work-item handles
    at a time; `groups` sets the number of work-groups."""
    floats, vector = x.rows * x.blocks * x.block, e.traits.vector
    if not groups:
        most = GROUPS_GPU if e.traits.gpu else GROUPS_CPU
        groups = max(1, min(most * e.traits.compute_units, ceil_div(floats, LEAST)))
    return ceil_div(floats, vector), floats % vector, groups


def parts(e: Emitter, x: Tensor) -> int:
    """The number of statistics records of a tensor like `x`: one for each work-group."""
    return split(e, x)[2]


def group_size(e: Emitter) -> int:
    """The size of a work-group that writes a record, or merges all records."""
    return GROUP_SIZE_GPU if e.traits.gpu else e.traits.group


def items(e: Emitter, groups: int) -> int:
    """The number of work-items of `groups` such work-groups."""
    return groups * group_size(e)


def statistics_arguments(x: Tensor, statistics: RangeStatistics | None) -> list[Access | int]:
    """STATISTICS_ARGUMENTS in kernels/include/statistics.h, of a kernel that goes through all of `x`."""
    if statistics is None:
        return []
    parts, add = statistics.parts, statistics.add
    return [parts.update if add else parts.write, prod(x.shape), int(add)]
