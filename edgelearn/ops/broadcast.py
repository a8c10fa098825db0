"""Broadcasting of images of one row or one column, as in NumPy."""

from __future__ import annotations

from .emit import Emitter
from .target import Target
from .tensor import Tensor


def emit_repeated(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, repeated along height or width where x has 1 and the target more."""
    _emit(e, "repeat", x, target, factor, least=64)


def emit_summed(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, summed along height or width where the target has 1 and x more: the gradient of
    `emit_repeated`."""
    _emit(e, "sum_repeated", x, target, factor, least=8)


def _emit(e: Emitter, kernel: str, x: Tensor, target: Target, factor: float, least: int) -> None:
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks, least)
    e.launch(
        "broadcast.cl", kernel, (groups, y.blocks), x.read, y.rows, count, x.height, x.width, y.height, y.width,
        float(factor), *target.arguments, **target.macros,
    )  # fmt: skip
