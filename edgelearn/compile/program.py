"""A program: the launches for micro-batches of one size, and what is needed to collect them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from edgelearn.launch import Buffer, Launch, Role
from edgelearn.ops import Emitter, Traits
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.jobs import Row
from edgelearn.ops.quantized_tensor import QuantizedTarget
from edgelearn.ops.stored import Stored, tensor_of
from edgelearn.ops.tensor import Shape, Tensor

from .memory.rematerialiser import Rematerialiser
from .precision.precision import RangeMode
from .storage import Storage


class Kind(Enum):
    """What a program does with a micro-batch."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


@dataclass(frozen=True)
class ProgramKey:
    """Names a program of a plan.

    Arguments:
    - `kind`: what it does.
    - `examples`: size of the micro-batch.
    - `ranges`: how quantized tensors get their ranges.
    - `first`: the micro-batch begins a mini-batch, so that gradients start anew.
    """

    kind: Kind
    examples: int
    ranges: RangeMode = RangeMode.OBSERVED
    first: bool = True

    def __str__(self) -> str:
        ranges = "" if self.ranges is RangeMode.OBSERVED else f", ranges {self.ranges.value}"
        return f"{self.kind.value} {self.examples}{ranges}{'' if self.first else ', not the first'}"


@dataclass(frozen=True, eq=False)
class Program:
    """Launches for one size of micro-batch, and the tensors through which the host feeds and reads them.

    - `prepare`: once a mini-batch: what derives from parameters.
    - `micro`: for each micro-batch: forward and backward pass.
    - `finish`: once a mini-batch: gradients completed and checked, weights updated.
    - `x`, `y`: the network's input and output.
    """

    prepare: list[Launch]
    micro: list[Launch]
    finish: list[Launch]
    x: Tensor
    y: Tensor
    rematerialiser: Rematerialiser

    @property
    def launches(self) -> list[Launch]:
        return self.prepare + self.micro + self.finish

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """Buffers of the forward pass, and those of the backward pass that hold the same again."""
        return self.rematerialiser.inverted


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
            quantized_copy.emit_to_floats(e, value, QuantizedTarget(tensor))
    e.launches += emitted
