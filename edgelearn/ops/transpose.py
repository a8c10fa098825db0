"""Weights as the backward pass to data wants them."""

from __future__ import annotations

from edgelearn.launch import Role

from .emit import Emitter
from .tensor import Tensor, ceil_div


def emit_transposed(e: Emitter, kernel: Tensor, taps: int, scale: Tensor | None) -> Tensor:
    """[out/16][taps][in][16] -> [in/16][taps][out][16], each output channel times its scale."""
    inputs, outputs = kernel.rows // taps, kernel.channels
    transposed = e.tensor("kernel transposed", (taps, outputs, inputs), Role.PREPARED)
    rows, blocks = ("rows", ceil_div(inputs, 16) * taps * outputs), ("blocks", taps * ceil_div(outputs, 16))
    kernel_name, items = rows if e.traits.gpu else blocks
    e.job(
        "transpose.cl", f"transpose_{kernel_name}", items, kernel.read, transposed.write,
        *([scale.read] if scale else []), numbers=(taps, inputs, outputs), whole=True, scale=scale is not None,
    )  # fmt: skip
    return transposed


def emit_scaled_taps(e: Emitter, kernel: Tensor, scale: Tensor) -> Tensor:
    """A depthwise kernel times its channels' scales."""
    scaled = e.tensor("kernel scaled", kernel.shape, Role.PREPARED)
    e.job(
        "transpose.cl",
        "scale_taps",
        kernel.blocks,
        kernel.read,
        scaled.write,
        scale.read,
        numbers=(kernel.rows,),
    )
    return scaled
