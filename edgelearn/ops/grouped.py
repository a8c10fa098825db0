"""Convolutions with several groups of channels, which need not begin at blocks of 16."""

from __future__ import annotations

from .emit import Emitter, Epilogue, Sum, start_sum
from .target import Target
from .tensor import Tensor
from .window import Window


def emit_forward(
    e: Emitter, window: Window, groups: int, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue
) -> None:
    e.launch(
        "grouped.cl", "grouped_forward", (y.rows, y.blocks), x.read, kernel.read, y.write, x.images, x.height,
        x.width, x.channels, y.height, y.width, y.channels, groups, *epilogue.arguments,
        flops=_flops(window, groups, x, y), whole=True, in_block=x.block, **window.macros, **epilogue.macros,
        **y.value_macros,
    )  # fmt: skip


def emit_backward_data(
    e: Emitter, window: Window, groups: int, x: Tensor, prepared: Tensor, dy: Tensor, target: Target
) -> None:
    e.launch(
        "grouped.cl", "grouped_backward_data", (x.rows, x.blocks), dy.read, prepared.read, x.images, x.height,
        x.width, x.channels, dy.height, dy.width, dy.channels, groups, *target.arguments,
        flops=_flops(window, groups, x, dy), whole=True, in_block=x.block, **window.macros, **target.macros,
    )  # fmt: skip


def emit_backward_weights(
    e: Emitter, window: Window, groups: int, x: Tensor, dy: Tensor, gradient: Tensor, add: bool
) -> Sum:
    image_rows = x.images * dy.height
    parts, _ = e.split_rows(image_rows, gradient.rows * dy.blocks, least=1)
    total, rows = start_sum(e, gradient, image_rows, parts)
    e.launch(
        "grouped.cl", "grouped_backward_weights", (gradient.rows, dy.blocks, total.groups), x.read, dy.read,
        total.target.update if add else total.target.write,
        x.images, x.height, x.width, x.channels, dy.height, dy.width, dy.channels, groups, rows, int(add),
        flops=_flops(window, groups, x, dy), whole=True, in_block=x.block, **window.macros, **dy.value_macros,
    )  # fmt: skip
    return total


def _flops(window: Window, groups: int, x: Tensor, y: Tensor) -> int:
    return 2 * y.rows * y.channels * window.taps * (x.channels // groups)
