"""Gradients of weights as partial sums over a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Emitter
from .tensor import Tensor, ceil_div

LONGEST_SUM = 1 << 15  # terms added one after the other: a float32 sum of a million has an error of 2e-4


@dataclass(frozen=True)
class Sum:
    """A gradient that the micro-batches of a mini-batch add to.

    Arguments:
    - `total`: the gradient.
    - `partials`: `groups` partial sums, (groups, rows, channels), which `finish` adds up; None if kernels write to
      `total`.
    - `checked`: kernels check what they write to `total` for NaN and infinity (default False: `finish` does).
    """

    total: Tensor
    partials: Tensor | None = None
    groups: int = 1
    checked: bool = False

    @property
    def target(self) -> Tensor:
        return self.partials or self.total


def start_sum(e: Emitter, total: Tensor, rows: int, groups: int, members: int = 1) -> tuple[Sum, int]:
    """(Sum, rows a member) for a kernel that adds up `rows` in `groups` of work-items with `members` each.

    All micro-batches of a plan share the partial sums, so the first one sets the number of groups; in smaller ones the
    last groups may have no rows.
    """
    partials = e.partials(f"{total.buffer.name} partial sums", groups, total)
    groups = partials.shape[0] if partials else 1
    return Sum(total, partials, groups), ceil_div(rows, groups * members)
