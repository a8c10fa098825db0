"""Masks: one bit for each value of a rectifier's output, set if its gradient passes."""

from __future__ import annotations

from .emit import Emitter
from .tensor import BLOCK, Tensor, ceil_div


def like(e: Emitter, x: Tensor) -> Tensor:
    """A new tensor for the bits of `x`: a word of 16 bits for each row and block of channels."""
    return e.tensor("bits", (ceil_div(x.rows * x.blocks, BLOCK), BLOCK), dtype="uint16")


def emit_packed(e: Emitter, x: Tensor, y: Tensor, activation: int) -> None:
    """Emit y = the bits of `x`, the output of the activation with this code (ACTIVATION in
    kernels/include/activation.h)."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "bits.cl", "pack_bits", (groups, x.blocks), x.read_mask, y.write, x.rows, count, whole=True,
        activation=activation,
    )  # fmt: skip


def emit_unpacked(e: Emitter, y: Tensor, x: Tensor) -> None:
    """Emit x = 1 for bits that are set, 0 for others: these have the same derivatives under ReLU and ReLU6."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch("bits.cl", "unpack_bits", (groups, x.blocks), y.read, x.write, x.rows, count)
