"""Compress: hold activations in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgelearn.errors import PlanError
from edgelearn.graph.network import Node
from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.formats import Format, NumberFormat, has_range
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, emit_measured_range
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored

from .base import Encoding


@dataclass(frozen=True)
class Compress(Encoding):
    """Hold the tensor in fewer bits; the forward pass computes with the original (Chakrabarti and Moseley 2019,
    "Backprop with approximate activations for memory-efficient network training", arXiv 1901.07988). Gradients are
    approximate; stochastic rounding keeps them unbiased (J. Chen et al. 2021, "ActNN", arXiv 2104.14129).

    Arguments:
    - `format`: `Float16()`, or `Format(bits)` with the tensor's own range, stored as int8 (default 8 bits).

    Raises PlanError for formats of more than 8 bits, or with a range per channel.
    """

    exact: ClassVar[bool] = False
    format: NumberFormat = Format(8)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.format.per_channel or self.format.storage in ("int16", "float32"):
            raise PlanError(
                f"Compress expects Float16(), or a Format of at most 8 bits with one range, got {self.format}."
            )

    def __str__(self) -> str:
        return f"compress to {self.format}"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        self.check_floats(node, x)
        name = f"{node.name}/compressed to {self.format}"
        y = e.tensor(f"compressed to {self.format}", x.shape, block=x.block, dtype=self.format.storage)
        if not has_range(self.format):
            self.format.emit_encode(e, x, y)
            return QuantizedTensor(y, None, self.format, name)
        record = e.tensor("range of the compressed tensor", (1, 16), Role.RANGE)
        held = QuantizedTensor(y, record, self.format, name)
        emit_measured_range(e, Quantizer(name, self.format, CurrentMinMax(), record), x)
        quantized_copy.emit_to_integers(e, x, held)
        return held

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        assert isinstance(held, QuantizedTensor)
        quantized_copy.emit_decode(e, held, x)
