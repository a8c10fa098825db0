"""Statistics of a tensor's values, which kernels collect: for its next range, and to detect overflows."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor


@dataclass(frozen=True)
class RangeStatistics:
    """Records of a tensor's values in one mini-batch, one for each work-group.

    Arguments:
    - `parts`: (records, 16), fields as in kernels/include/range.h.
    - `traced`: also sum up signal, noise and product, for signal to noise and cosine.
    - `add`: add to the records of earlier micro-batches.
    """

    parts: Tensor
    traced: bool = False
    add: bool = False
