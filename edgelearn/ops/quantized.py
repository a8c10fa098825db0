"""The launches that compute an op on 8-bit integers, by type of op."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from edgelearn.errors import PlanError

from . import quantized_convolution as quantized_convolution
from . import quantized_depthwise as quantized_depthwise
from .base import LinearOp, Op
from .convolution import Conv2D
from .dense import Dense
from .depthwise import DepthwiseConv2D
from .elementwise import Activation
from .merge import Add
from .tensor import LINEAR, Function, Shape

FAMILIES: dict[type[LinearOp], ModuleType] = {
    Conv2D: quantized_convolution,
    Dense: quantized_convolution,
    DepthwiseConv2D: quantized_depthwise,
}


def supports(op: LinearOp) -> bool:
    """True if the op has integer kernels."""
    return type(op) in FAMILIES and getattr(op, "groups", 1) == getattr(op, "depth_multiplier", 1) == 1


def family(op: LinearOp) -> ModuleType:
    """A module with `emit_forward`, `emit_backward_data` and `emit_backward_weights`, which take the op and
    QuantizedTensors, else the arguments of the op's own methods. Raises PlanError for an op without integer kernels."""
    if not supports(op):
        raise PlanError(f"{type(op).__name__} has no integer kernels: keep it in fp32, or simulate the integers.")
    return FAMILIES[type(op)]


def activation_of(op: Op, shapes: Sequence[Shape]) -> Function | None:
    """The activation by which quantized_copy.emit_forward computes `op` from inputs of these shapes: that of an
    activation which only selects between its input and constants, or none of a sum of two. None if it can't."""
    if isinstance(op, Activation):
        return op.epilogue if op.epilogue.two_slopes and not op.invertible else None
    return LINEAR if isinstance(op, Add) and len(shapes) == 2 and len(set(shapes)) == 1 else None
