"""Kernels as products read them: transposed, scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelearn.launch import In, Role

from .emit import Emitter
from .tensor import Shape, Tensor, ceil_div

ROWS_TOGETHER = 256  # work-items of a GPU for a block of channels that is scaled


@dataclass(frozen=True)
class KernelView:
    """A kernel as a product reads it.

    Arguments:
    - `kernel`: the weights.
    - `taps`: transpose in each of this number of taps; 0 for no transposition.
    - `scale`: multiply each output channel by its scale; None for no scale.
    """

    kernel: Tensor
    taps: int = 0
    scale: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """(input channels, output channels) of a tap."""
        return self.kernel.rows // max(self.taps, 1), self.kernel.channels

    @property
    def changes(self) -> bool:
        """True if it isn't the kernel itself."""
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
    """Emit the jobs that write the tensor that `view` describes, unless that is the kernel itself."""
    if view.taps:
        return emit_transposed(e, view.kernel, view.taps, view.scale)
    return view.kernel if view.scale is None else emit_scaled_taps(e, view.kernel, view.scale)


def emit_transposed(e: Emitter, kernel: Tensor, taps: int, scale: Tensor | None) -> Tensor:
    """Emit the job [out/16][taps][in][16] -> [in/16][taps][out][16], each output channel times its scale."""
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
    """Emit the job that multiplies a kernel by its output channels' scales."""
    scaled = e.tensor("kernel scaled", kernel.shape, Role.PREPARED)
    together = min(kernel.rows, ROWS_TOGETHER) if e.traits.gpu else 1
    e.job(
        "transpose.cl", "scale_taps", kernel.blocks * together, kernel.read, scaled.write, scale.read,
        numbers=(kernel.rows, together),
    )  # fmt: skip
    return scaled
