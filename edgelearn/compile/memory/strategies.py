"""Ways back for saved activations: each says what becomes of a tensor that isn't kept as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edgelearn.compile.precision.precision import Precision
from edgelearn.errors import PlanError
from edgelearn.graph.network import Network, Node
from edgelearn.graph.reversible import invertible_streams
from edgelearn.launch import Buffer, Role, Transfer
from edgelearn.ops import Emitter, ReLU, Tensor, bits
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.formats import AnyFormat, Float16, Format
from edgelearn.ops.half import emit_halved
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, emit_measured_range
from edgelearn.ops.quantized_tensor import QuantizedTarget, QuantizedTensor
from edgelearn.ops.stored import Stored


@dataclass(frozen=True)
class Strategy:
    """Base of ways back. On the way to a tensor of a lower `level`, those of higher levels come and go; `result` is
    what a tensor is that came back so, and a `lossy` way gives only nearly what was there."""

    level: ClassVar[int] = 1
    lossy: ClassVar[bool] = False
    result: ClassVar[str] = "restored"

    def check(self, name: str, network: Network, precision: Precision) -> None:
        """Raises PlanError where layer `name` can't have it."""


@dataclass(frozen=True)
class Recompute(Strategy):
    """The launches of the forward pass run again, from the nearest tensors that are there. A second level is
    checkpoints within checkpoints."""

    level: int = 1
    result: ClassVar[str] = "recomputed"

    def __str__(self) -> str:
        return "recompute" if self.level == 1 else f"recompute, level {self.level}"


@dataclass(frozen=True)
class Invert(Strategy):
    """The first input of an invertible layer comes back from the layer's output and other inputs."""

    layer: str
    result: ClassVar[str] = "inverted"

    def __str__(self) -> str:
        return f"invert by {self.layer}"

    def check(self, name: str, network: Network, precision: Precision) -> None:
        _, inverted = invertible_streams(network)
        if inverted.get(name) != self.layer:
            raise PlanError(
                f"'{name}' can't be had back from '{self.layer}': only the first input of a Coupling or SpaceToDepth "
                f"can, and only if the other input isn't made of it. Recompute it, or couple the network's residual "
                f"blocks (see graph/reversible.py)."
            )
        if any(precision.format("activations", layer) for layer in (name, self.layer)):
            raise PlanError(
                f"'{name}' can't be had back from '{self.layer}', since its activations are rounded to fewer bits: "
                f"leave streams out of that (Precision's exceptions), or recompute them."
            )


@dataclass(frozen=True)
class Encoding(Strategy):
    """Base of ways that keep something else from which the tensor is made again. `masks`: what comes back tells which
    values an activation passes, and nothing else."""

    masks: ClassVar[bool] = False
    kept: ClassVar[str] = "compressed"

    def put(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        """Emit what is to run after the last use of `x`, the output of `node`, in the forward pass; returns what is
        kept. Raises PlanError where that can't be."""
        raise NotImplementedError

    def get(self, e: Emitter, held: Stored, x: Tensor) -> None:
        """Emit what makes `x` again."""
        raise NotImplementedError

    def _check_floats(self, node: Node, x: Tensor) -> None:
        if x.dtype != "float32":
            raise PlanError(
                f"'{node.name}' can't be had back by {self}: it is {x.dtype}, by the plan's precision. Keep or "
                f"recompute it."
            )


@dataclass(frozen=True)
class Compress(Encoding):
    """Kept in `format`: Float16(), halves, or Format(bits), int8 with the tensor's own range (Chakrabarti and Moseley
    2019, "Backprop with approximate activations for memory-efficient network training", arXiv 1901.07988). The forward
    pass computes with the tensor as it was. Gradients are approximate; stochastic rounding keeps them unbiased (J. Chen
    et al. 2021, "ActNN", arXiv 2104.14129). Raises PlanError for formats that take more than 8 bits, or a range for
    each channel."""

    lossy: ClassVar[bool] = True
    format: AnyFormat = Format(8)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.format.per_channel or self.format.storage not in ("int8", "float16"):
            raise PlanError(f"Activations are kept as halves or in at most 8 bits by one range, not in {self.format}.")

    def __str__(self) -> str:
        return f"compress to {self.format}"

    def put(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        self._check_floats(node, x)
        name = f"{node.name}/compressed to {self.format}"
        y = e.tensor(f"compressed to {self.format}", x.shape, block=x.block, dtype=self.format.storage)
        if isinstance(self.format, Float16):
            emit_halved(e, x, y)
            return y
        record = e.tensor("range of what is kept", (1, 16), Role.RANGE)
        held = QuantizedTensor(y, record, self.format, name)
        emit_measured_range(e, Quantizer(name, self.format, CurrentMinMax(), record), x)
        quantized_copy.emit_to_integers(e, x, held)
        return held

    def get(self, e: Emitter, held: Stored, x: Tensor) -> None:
        quantized_copy.emit_to_floats(e, held, QuantizedTarget(x))


@dataclass(frozen=True)
class Mask(Encoding):
    """Kept as a bit for each value of a ReLU or ReLU6: whether its gradient passes. For where the backward pass needs
    nothing else: before an addition or an average, or a layer whose kernel isn't trained."""

    masks: ClassVar[bool] = True

    def __str__(self) -> str:
        return "mask"

    def put(self, e: Emitter, node: Node, x: Tensor) -> Tensor:
        self._check_floats(node, x)
        if not isinstance(node.op, ReLU):
            raise PlanError(f"'{node.name}' can't be kept as a mask: it is no ReLU's output. Keep or recompute it.")
        held = bits.like(e, x)
        bits.emit_packed(e, x, held, node.op.code)
        return held

    def get(self, e: Emitter, held: Tensor, x: Tensor) -> None:
        bits.emit_unpacked(e, held, x)


@dataclass(frozen=True)
class Offload(Encoding):
    """Written to pages outside the device, in the host's memory or in a file in `folder`, once the forward pass has
    used it, and fetched back before the backward pass does: what a phone has its flash for. Exact. Copies go on while
    launches compute (graph/prefetch.py)."""

    folder: str | None = None
    kept: ClassVar[str] = "offloaded"

    def __str__(self) -> str:
        return f"page to {self.place}"

    @property
    def place(self) -> str:
        return "the host's memory" if self.folder is None else f"a file in {self.folder}"

    def put(self, e: Emitter, node: Node, x: Tensor) -> Tensor:
        page = Buffer(f"{node.name}/page", x.buffer.nbytes, Role.PAGED, e.layer, "uint8")
        e.launches.append(Transfer.of(x.buffer, page, e.layer))
        return replace(x, buffer=page)

    def get(self, e: Emitter, held: Tensor, x: Tensor) -> None:
        e.launches.append(Transfer.of(held.buffer, x.buffer, e.layer))
