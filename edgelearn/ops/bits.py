"""A bit for each value of a rectifier's output: whether its gradient passes."""

from __future__ import annotations

from .emit import Emitter
from .tensor import BLOCK, Tensor, ceil_div


def like(e: Emitter, x: Tensor) -> Tensor:
    """Room for the bits of `x`: a word of 16 for each row and block of channels."""
    return e.tensor("bits", (ceil_div(x.rows * x.blocks, BLOCK), BLOCK), dtype="uint16")


def emit_packed(e: Emitter, x: Tensor, y: Tensor, activation: int) -> None:
    """y = the bits of `x`, the output of ReLU or ReLU6 as `activation` says (ACTIVATION in
    kernels/include/activation.h)."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "bits.cl", "pack_bits", (groups, x.blocks), x.read_mask, y.write, x.rows, count, whole=True,
        activation=activation,
    )  # fmt: skip


def emit_unpacked(e: Emitter, y: Tensor, x: Tensor) -> None:
    """x = 1 where the bit is set and 0 elsewhere: what passes through ReLU and ReLU6 alike, and what doesn't."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch("bits.cl", "unpack_bits", (groups, x.blocks), y.read, x.write, x.rows, count)
