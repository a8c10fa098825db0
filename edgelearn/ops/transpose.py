"""Weights as the backward pass to data wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelearn.launch import In, Role

from .emit import Emitter
from .tensor import Shape, Tensor, ceil_div


@dataclass(frozen=True)
class KernelView:
    """What the backward pass to data makes of a kernel: transposed in each of its `taps`, or as it lies where there are
    none; each output channel times its `scale`, where there is one."""

    kernel: Tensor
    taps: int = 0
    scale: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """(input channels, output channels) of a tap."""
        return self.kernel.rows // max(self.taps, 1), self.kernel.channels

    @property
    def changes(self) -> bool:
        """Whether it is any other than the kernel itself."""
        return self.taps > 0 or self.scale is not None

    @property
    def shape(self) -> Shape:
        inputs, outputs = self.sizes
        return (self.taps, outputs, inputs) if self.taps else self.kernel.shape

    @property
    def read(self) -> tuple[In, ...]:
        return (self.kernel.read,) if self.scale is None else (self.kernel.read, self.scale.read)

    @property
    def macros(self) -> dict[str, Any]:
        """SCALE and TRANSPOSED in kernels/include/weights.h."""
        return {"scale": self.scale is not None, "transposed": self.taps > 0}


def emit_prepared(e: Emitter, view: KernelView) -> Tensor:
    """Jobs that make the tensor which `view` describes; the kernel itself where it is just that."""
    if view.taps:
        return emit_transposed(e, view.kernel, view.taps, view.scale)
    return view.kernel if view.scale is None else emit_scaled_taps(e, view.kernel, view.scale)


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
