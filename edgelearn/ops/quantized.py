"""Which launches compute a linear op on 8-bit integers."""

from __future__ import annotations

from types import ModuleType

from edgelearn.errors import PlanError

from . import quantized_convolution, quantized_depthwise
from .base import LinearOp
from .convolution import Conv2D
from .dense import Dense
from .depthwise import DepthwiseConv2D

FAMILIES: dict[type[LinearOp], ModuleType] = {
    Conv2D: quantized_convolution,
    Dense: quantized_convolution,
    DepthwiseConv2D: quantized_depthwise,
}


def supports(op: LinearOp) -> bool:
    """Whether `family` has the op."""
    return type(op) in FAMILIES and getattr(op, "groups", 1) == 1


def family(op: LinearOp) -> ModuleType:
    """A module with `emit_forward`, `emit_backward_data` and `emit_backward_weights`. They take the op
    and `Ranged` tensors, else what the op's own methods take. Raises PlanError for an op without integer kernels."""
    if not supports(op):
        raise PlanError(f"{type(op).__name__} has no integer kernels: keep it in fp32, or simulate the integers.")
    return FAMILIES[type(op)]
