"""Sums over a mini-batch, in parts."""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Emitter
from .tensor import Tensor, ceil_div

LONGEST_SUM = 1 << 15  # products one after the other: a float32 sum of a million of them is off by 2e-4


@dataclass(frozen=True)
class Sum:
    """A gradient that the micro-batches of a mini-batch add to: `groups` partial sums side by side, which `finish`
    adds up in `total`; or, without `partials`, `total` itself."""

    total: Tensor
    partials: Tensor | None = None
    groups: int = 1

    @property
    def target(self) -> Tensor:
        return self.partials or self.total


def start_sum(e: Emitter, total: Tensor, rows: int, groups: int, members: int = 1) -> tuple[Sum, int]:
    """Where partial sums of groups of rows go, and the rows of each of a group's members. All micro-batches of a plan
    share the place, so whoever asks first decides on `groups`; where rows are few, the last ones have none and add
    nothing."""
    partials = e.partials(f"{total.buffer.name} partial sums", groups, total)
    groups = partials.shape[0] if partials else 1
    return Sum(total, partials, groups), ceil_div(rows, groups * members)
