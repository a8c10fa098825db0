"""Copy of a tensor."""

from __future__ import annotations

from .emit import Emitter
from .target import Target
from .tensor import Tensor


def emit_copy(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = x, masked or accumulated by the target."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "elementwise.cl", "copy", (groups, x.blocks), x.read, x.rows, count, *target.arguments,
        **target.macros,
    )  # fmt: skip
