"""Emitters whose persistent tensors come from the plan's storage, and conversion of inputs and gradients on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgelearn.compile.storage import Storage
from edgelearn.launch import Buffer, Role
from edgelearn.ops import Emitter, Traits
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.copy import emit_copy, emit_padded
from edgelearn.ops.jobs import Row
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored
from edgelearn.ops.target import Target
from edgelearn.ops.tensor import Shape, Tensor


class StorageEmitter(Emitter):
    """An emitter whose persistent tensors come from `storage`."""

    def __init__(self, traits: Traits, storage: Storage) -> None:
        super().__init__(traits)
        self.storage = storage

    def tensor(
        self, name: str, shape: Shape, role: Role = Role.TEMPORARY, block: int = 16, dtype: str = "float32"
    ) -> Tensor:
        if role is Role.TEMPORARY:
            return super().tensor(name, shape, role, block, dtype)
        return self.storage.tensor(f"{self.layer}/{name}", shape, role, block, self.layer, dtype=dtype)

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None:
        return self.storage.partials(name, groups, total)

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        return self.storage.table(rows)


@contextmanager
def stored_as(e: Emitter, values: Sequence[Stored], dtype: str = "float32") -> Iterator[list[Tensor]]:
    """Yield `values` as tensors of `dtype`, floats or halves. Those in another format, which launches emitted in the
    block read, are converted before it."""
    start = len(e.launches)
    tensors = [
        v if isinstance(v, Tensor) and v.dtype == dtype else e.tensor(f"as {dtype}", v.shape, dtype=dtype)
        for v in values
    ]
    yield tensors
    emitted = e.launches[start:]
    del e.launches[start:]
    read = {buffer for launch in emitted for buffer in launch.reads}
    for value, tensor in zip(values, tensors, strict=True):
        if value is not tensor and tensor.buffer in read:
            if isinstance(value, QuantizedTensor):
                quantized_copy.emit_decode(e, value, tensor)
            else:
                emit_padded(e, value, tensor)
    e.launches += emitted


@contextmanager
def targets_as(e: Emitter, targets: Sequence[Target | None], dtype: str) -> Iterator[list[Target | None]]:
    """Yield `targets` of `dtype`. What is written to one that stands for a target of another type is copied there
    after the block."""
    own = [
        t if t is None or t.tensor.dtype == dtype else Target(e.tensor("gradient", t.tensor.shape, dtype=dtype))
        for t in targets
    ]
    yield own
    for target, written in zip(targets, own, strict=True):
        if target is not None and written is not None and written is not target:
            emit_copy(e, written.tensor, target)
