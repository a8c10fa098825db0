"""Masks: one bit for each value of an activation's output, for the slope that its gradient is multiplied by."""

from __future__ import annotations

from .emit import Emitter
from .function import Function
from .tensor import BLOCK, Tensor, ceil_div


def like(e: Emitter, x: Tensor) -> Tensor:
    """A new tensor for the bits of `x`: a word of 16 bits for each row and block of channels."""
    return e.tensor("bits", (ceil_div(x.rows * x.blocks, BLOCK), BLOCK), dtype="uint16")


def emit_packed(e: Emitter, x: Tensor, y: Tensor, function: Function) -> None:
    """Emit y = the bits of `x`, the output of a function of two slopes."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "bits.cl", "pack_bits", (groups, x.blocks), x.read_output_of(function), y.write, x.rows, count, whole=True,
        **function.macros(),
    )  # fmt: skip


def emit_unpacked(e: Emitter, y: Tensor, x: Tensor) -> None:
    """Emit x = 1 for bits that are set, 0 for others: these have the same derivatives under such functions."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch("bits.cl", "unpack_bits", (groups, x.blocks), y.read, x.write, x.rows, count)
