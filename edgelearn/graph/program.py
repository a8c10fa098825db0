"""A program: the launches for micro-batches of one size, and what is needed to collect them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgelearn.launch import Buffer, Launch, Role
from edgelearn.ops import Emitter, Loss, SoftmaxCrossEntropy, Traits, quantized_copy
from edgelearn.ops.jobs import Row
from edgelearn.ops.ranged import RangedTarget
from edgelearn.ops.stored import Stored, tensor_of
from edgelearn.ops.tensor import Shape, Tensor

from .precision import KNOWN, Precision
from .saving import Saving
from .storage import Storage
from .ways_back import WaysBack


@dataclass(frozen=True)
class Settings:
    """What a program computes. `batchnorm` is "kept" or "batch": whose statistics training normalizes with; `ranges`
    says how quantized tensors get theirs (see Precision.mode); `saving` is how activations come back."""

    loss: Loss | None = SoftmaxCrossEntropy()  # noqa: RUF009
    train: bool = True
    batchnorm: str = "kept"
    precision: Precision = Precision()  # noqa: RUF009
    ranges: str = KNOWN
    saving: Saving = field(default_factory=dict)


@dataclass
class Program:
    """Launches for one size of micro-batch, and the tensors through which the host feeds and reads them."""

    prepare: list[Launch] = field(default_factory=list)
    micro: list[Launch] = field(default_factory=list)
    finish: list[Launch] = field(default_factory=list)
    x: Tensor | None = None
    y: Tensor | None = None
    ways_back: WaysBack | None = None

    @property
    def launches(self) -> list[Launch]:
        return self.prepare + self.micro + self.finish

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """Buffers of the forward pass, and those of the backward pass that hold the same again."""
        return self.ways_back.inverted if self.ways_back else {}


class StorageEmitter(Emitter):
    """An emitter whose persistent tensors come from the plan's storage."""

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
    """The values as float tensors for what is emitted inside; made of integers or halves beforehand, where launches
    read them."""
    start = len(e.launches)
    floats = [v if tensor_of(v).dtype == "float32" else e.tensor("as floats", v.shape) for v in values]
    yield floats
    emitted = e.launches[start:]
    del e.launches[start:]
    read = {buffer for launch in emitted for buffer in launch.reads}
    for value, tensor in zip(values, floats, strict=True):
        if value is not tensor and tensor.buffer in read:
            quantized_copy.emit_to_floats(e, value, RangedTarget(tensor))
    e.launches += emitted
