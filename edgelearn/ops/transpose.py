"""Weights as the backward pass to data wants them."""

from __future__ import annotations

from edgelearn.launch import Role

from .emit import Emitter
from .tensor import Tensor, ceil_div


def emit_transposed(e: Emitter, kernel: Tensor, taps: int, scale: Tensor | None) -> Tensor:
    """[out/16][taps][in][16] -> [in/16][taps][out][16], each output channel times its scale."""
    inputs, outputs = kernel.rows // taps, kernel.channels
    transposed = e.tensor("kernel transposed", (taps, outputs, inputs), Role.PREPARED)
    e.launch(
        "transpose.cl", "transpose_weights", (ceil_div(inputs, 16), ceil_div(outputs, 16), taps),
        kernel.read, transposed.write, taps, inputs, outputs, *([scale.read] if scale else []),
        scale=scale is not None,
    )  # fmt: skip
    return transposed


def emit_scaled_taps(e: Emitter, kernel: Tensor, scale: Tensor) -> Tensor:
    """A depthwise kernel times its channels' scales."""
    scaled = e.tensor("kernel scaled", kernel.shape, Role.PREPARED)
    e.launch(
        "transpose.cl", "scale_taps", (kernel.blocks,), kernel.read, scaled.write, kernel.rows, kernel.blocks,
        scale.read, scale=True,
    )  # fmt: skip
    return scaled
