"""Which launches compute a linear op on 8-bit integers."""

from __future__ import annotations

from types import ModuleType

from edgelearn.errors import PlanError

from . import quantised_convolution, quantised_depthwise
from .base import LinearOp
from .convolution import Conv2D
from .dense import Dense
from .depthwise import DepthwiseConv2D
from .formats import Format

FAMILIES: dict[type[LinearOp], ModuleType] = {
    Conv2D: quantised_convolution,
    Dense: quantised_convolution,
    DepthwiseConv2D: quantised_depthwise,
}


def family(op: LinearOp) -> ModuleType:
    """A module with `emit_forward`, `emit_backward_data` and `emit_backward_weights`. They take the op and `Ranged`
    tensors, else what the op's own methods take. Raises PlanError for an op without integer kernels."""
    if type(op) not in FAMILIES:
        raise PlanError(f"{type(op).__name__} has no integer kernels: keep it in fp32, or simulate the integers.")
    return FAMILIES[type(op)]


def check_formats(layer: str, activations: Format, weights: Format, gradients: Format | None = None) -> None:
    """Raises PlanError for formats that integer kernels don't have: above 8 bits, and weights with zero points."""
    for what, found in (("activations", activations), ("weights", weights), ("gradients", gradients)):
        if found and found.storage != "int8":
            raise PlanError(
                f"'{layer}' has {what} of {found.bits} bits, but integer kernels take 2 to 8: simulate them."
            )
        if found and found.per_channel and what != "weights":
            raise PlanError(f"'{layer}' has {what} with a range a channel: only weights have those.")
    if not weights.symmetric:
        raise PlanError(f"'{layer}' has weights with a zero point, but those of integer kernels are symmetric.")
