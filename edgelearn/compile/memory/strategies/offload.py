"""Offload: hold activations outside the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from edgelearn.graph.network import Node
from edgelearn.launch import Buffer, Role, Transfer
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.quantized_tensor import Stored, tensor_of

from .base import Encoding, Strategy


@dataclass(frozen=True)
class Offload(Encoding):
    """Copy the tensor to pages outside the device after the forward pass's last use, and back before the backward pass
    needs it: to the flash of a phone, for example. Exact. Copies go on while launches compute (see prefetch.py).

    Arguments:
    - `folder`: folder of the temporary file that holds the pages; None for the host's memory (default).
    """

    folder: str | None = None
    held_purpose: ClassVar[str] = "offloaded"

    def __str__(self) -> str:
        return f"offload to {self.place}"

    @property
    def place(self) -> str:
        return "the host's memory" if self.folder is None else f"a file in {self.folder}"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        page = Buffer(f"{node.name}/page", x.buffer.nbytes, Role.PAGED, e.layer, "uint8")
        e.launches.append(Transfer.of(x.buffer, page, e.layer))
        return replace(x, buffer=page)

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        e.launches.append(Transfer.of(tensor_of(held).buffer, x.buffer, e.layer))


def offload_of(strategies: Iterable[Strategy]) -> Offload | None:
    """The first Offload among `strategies`, which says where a plan's pages are."""
    return next((strategy for strategy in strategies if isinstance(strategy, Offload)), None)
