"""Values passed on as they are."""

from __future__ import annotations

from .emit import Emitter, GradientTarget
from .tensor import Tensor


def emit_copy(e: Emitter, x: Tensor, target: GradientTarget) -> None:
    """target = x; masked, or added to what is there, as the target says."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "elementwise.cl", "copy", (groups, x.blocks), x.read, x.rows, count, *target.arguments,
        **target.macros,
    )  # fmt: skip
