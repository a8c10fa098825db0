"""Tensors as they lie in memory: see kernels/include/rows.h."""

from __future__ import annotations

from .emit import Emitter
from .tensor import Tensor, ceil_div


def split(e: Emitter, x: Tensor, groups: int = 0) -> tuple[int, int, int]:
    """Rows of as many floats as a work-item handles at a time, floats of a last one that is not full, and work-groups
    (`groups`, where given)."""
    floats, lanes = x.rows * x.blocks * x.block, e.traits.vector
    if not groups:
        most = 16384 // e.traits.group if e.traits.gpu else 8 * e.traits.compute_units
        groups = max(1, min(most, ceil_div(floats, 1024)))
    return ceil_div(floats, lanes), floats % lanes, groups


def parts(e: Emitter, x: Tensor) -> int:
    """Records of what is found of a tensor like `x`: one for each work-group."""
    return split(e, x)[2]


def items(e: Emitter, groups: int) -> int:
    return groups * e.traits.group
