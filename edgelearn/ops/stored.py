"""Tensors as they are stored: floats, halves, or integers with the record of their range."""

from __future__ import annotations

from edgelearn.launch import In

from .formats import Storage
from .quantized_tensor import QuantizedTensor
from .tensor import Tensor

Stored = Tensor | QuantizedTensor


def tensor_of(x: Stored) -> Tensor:
    return x.tensor if isinstance(x, QuantizedTensor) else x


def reads(x: Stored) -> tuple[In, ...]:
    """INPUT_STORED in kernels/include/stored.h."""
    return x.read if isinstance(x, QuantizedTensor) else (x.read,)


def macros(x: Stored) -> dict[str, int]:
    """STORED, and with it PER_CHANNEL, as kernels/include/stored.h has them."""
    code = Storage.of(tensor_of(x).dtype)
    return {"stored": code, "per_channel": isinstance(x, QuantizedTensor) and x.format.per_channel} if code else {}
