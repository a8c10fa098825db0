"""Mask: hold one bit for each value of an activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgelearn.errors import PlanError
from edgelearn.graph.network import Node
from edgelearn.ops import Activation, Emitter, Tensor, bits
from edgelearn.ops.quantized_tensor import Stored, tensor_of

from .base import Encoding


@dataclass(frozen=True)
class Mask(Encoding):
    """Hold a bit for each output of a ReLU or LeakyReLU: which slope its gradient is multiplied by. It is enough where
    the backward pass needs no values: before an addition or an average, or before a layer whose kernel is frozen."""

    restores_values: ClassVar[bool] = False

    def __str__(self) -> str:
        return "mask"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        self.check_floats(node, x)
        if not isinstance(node.op, Activation) or not node.op.function.two_slopes:
            raise PlanError(
                f"'{node.name}' can't be held as a mask: it is no ReLU nor LeakyReLU. Store or recompute it."
            )
        held = bits.like(e, x)
        bits.emit_packed(e, x, held, node.op.function)
        return held

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        bits.emit_unpacked(e, tensor_of(held), x)
