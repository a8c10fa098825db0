"""Weights as the backward pass to data wants them."""

from __future__ import annotations

from edgelearn.launch import Role

from .emit import Emitter
from .tensor import Tensor, ceil_div

COLUMNS = 256  # output channels a work-item of a CPU transposes


def emit_transposed(e: Emitter, kernel: Tensor, taps: int, scale: Tensor | None) -> Tensor:
    """[out/16][taps][in][16] -> [in/16][taps][out][16], each output channel times its scale."""
    inputs, outputs = kernel.rows // taps, kernel.channels
    transposed = e.tensor("kernel transposed", (taps, outputs, inputs), Role.PREPARED)
    count = 1 if e.traits.gpu else COLUMNS
    e.job(
        "transpose.cl", "transpose_weights", ceil_div(inputs, 16) * taps * ceil_div(outputs, count),
        kernel.read, transposed.write, *([scale.read] if scale else []), numbers=(taps, inputs, outputs, count),
        scale=scale is not None,
    )  # fmt: skip
    return transposed


def emit_scaled_taps(e: Emitter, kernel: Tensor, scale: Tensor) -> Tensor:
    """A depthwise kernel times its channels' scales."""
    scaled = e.tensor("kernel scaled", kernel.shape, Role.PREPARED)
    e.job("transpose.cl", "scale_taps", kernel.blocks, kernel.read, scaled.write, scale.read, numbers=(kernel.rows,))
    return scaled
