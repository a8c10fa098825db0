"""Emitters whose persistent tensors come from the plan's storage, and decoding of quantized inputs on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgelearn.compile.storage import Storage
from edgelearn.launch import Buffer, Role
from edgelearn.ops import Emitter, Traits
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.jobs import Row
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored
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
def as_floats(e: Emitter, values: Sequence[Stored]) -> Iterator[list[Tensor]]:
    """Yield `values` as float tensors. Those in another format, which launches emitted in the block read, are decoded
    before it."""
    start = len(e.launches)
    floats = [v if isinstance(v, Tensor) else e.tensor("as floats", v.shape) for v in values]
    yield floats
    emitted = e.launches[start:]
    del e.launches[start:]
    read = {buffer for launch in emitted for buffer in launch.reads}
    for value, tensor in zip(values, floats, strict=True):
        if isinstance(value, QuantizedTensor) and tensor.buffer in read:
            quantized_copy.emit_decode(e, value, tensor)
    e.launches += emitted
