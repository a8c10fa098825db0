"""Copy of a tensor."""

from __future__ import annotations

from .emit import Emitter
from .quantized_tensor import stored_macros
from .target import Target
from .tensor import BLOCK, Tensor


def emit_copy(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = x, in the target's type, masked or accumulated by the target."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "elementwise.cl", "copy", (groups, x.blocks), x.read, x.rows, count, *target.arguments,
        **stored_macros(x), **target.macros,
    )  # fmt: skip


def emit_padded(e: Emitter, x: Tensor, y: Tensor) -> None:
    """Emit y = x, in y's type and in blocks of 16 channels: a network's input may have fewer."""
    if x.block == BLOCK:
        emit_copy(e, x, Target(y))
        return
    groups, count = e.bands(x.rows, y.blocks, 64)
    e.launch(
        "elementwise.cl", "pad_channels", (groups, y.blocks), x.read, x.rows, count, x.channels, y.write,
        **y.value_macros,
    )  # fmt: skip
