"""A sum that an integer convolution computes as it writes: kernels/include/residual.h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelearn.launch import Access

from .function import LINEAR, Function
from .quantize import Quantizer
from .quantized_tensor import QuantizedTensor


@dataclass(frozen=True)
class Residual:
    """The sum of a convolution's result and another tensor, and an activation of it. Bits are those of launches that
    store each of these tensors.

    Arguments:
    - `own`: the range that rounds the convolution's result, in use already.
    - `other`: the integers that are added, of the same shape.
    - `sum`: the range that rounds the sum before its activation (default None: there is no activation).
    - `activation`: that activation.
    """

    own: Quantizer
    other: QuantizedTensor
    sum: Quantizer | None = None
    activation: Function = LINEAR

    @property
    def arguments(self) -> list[Access | float]:
        """RESIDUAL_ARGUMENTS."""
        of_sum = [self.sum.record.read, *self.sum.bounds] if self.sum else []
        return [self.own.record.read, *self.own.bounds, *self.other.read, *of_sum]

    @property
    def macros(self) -> dict[str, Any]:
        return {"residual": 2, **self.activation.macros("sum_activation")} if self.sum else {"residual": 1}
