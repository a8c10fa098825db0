"""The state of a lowering, shared by its passes: emitters, fused stages, heads that losses compute, and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from edgelearn.errors import PlanError
from edgelearn.graph.fuse import Stage, fuse, trained_stages
from edgelearn.graph.network import Network, Node
from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    BatchNormalization,
    BFloat16,
    Conv2D,
    Emitter,
    Flatten,
    Float16,
    LinearOp,
    Loss,
    Losses,
    Reshape,
    Traits,
    batchnorm,
    quantize,
)
from edgelearn.ops.emit import Control, Row
from edgelearn.ops.formats import KernelView, QuantizedTensor, Stored
from edgelearn.ops.losses import rows_of
from edgelearn.ops.quantized import supports
from edgelearn.ops.target import Target, emit_copy, emit_padded
from edgelearn.ops.tensor import Shape, Tensor

from .plan import Kind, ProgramKey
from .precision import Precision, Quantizers
from .rematerialisation import Rematerialiser
from .request import Request
from .storage import Storage


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
                quantize.emit_decode(e, value, tensor)
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


LIKE = {"Softmax": ("Softmax", "LogSoftmax")}  # heads that a loss which names the first computes: names of ops
HEADS = ("Softmax", "LogSoftmax", "Sigmoid")


def head_of(network: Network, output: str, loss: Loss | None) -> list[Node]:
    """The layers at an output that its loss leaves out: a head, and what reshapes it without changing its rows. Empty
    if there is no head. Without a loss, a head of any kind at the very end: the layer below stays float32 in every
    precision."""
    nodes = _head(network, output, loss)
    return nodes if nodes and nodes[0].shape[-1] == nodes[-1].shape[-1] else []


def check_heads(network: Network, losses: Losses) -> None:
    """Raises PlanError if a head is reshaped to other rows: a loss would take probabilities for logits."""
    for output, loss in losses.by_output.items():
        nodes = _head(network, output, loss)
        if nodes and nodes[0].shape[-1] != nodes[-1].shape[-1]:
            raise PlanError(
                f"{type(loss).__name__} takes logits, but '{output}' reshapes probabilities of '{nodes[0].name}', "
                f"{nodes[0].shape} to {nodes[-1].shape}: to train, put the {type(nodes[0].op).__name__} at the end, "
                f"which the loss then takes as its own, or leave it out."
            )


def _head(network: Network, output: str, loss: Loss | None) -> list[Node]:
    """The layers from a head to the output, empty if there is none."""
    kinds = HEADS if loss is None else LIKE.get(loss.head, (loss.head,))
    nodes = [network.nodes[output]]
    while loss and isinstance(nodes[0].op, Flatten | Reshape) and nodes[0].inputs[0] in network.nodes:
        nodes.insert(0, network.nodes[nodes[0].inputs[0]])
    return nodes if type(nodes[0].op).__name__ in kinds else []


def without_heads(stages: list[Stage], heads: set[str]) -> list[Stage]:
    """The stages without the layers in `heads`, which end theirs."""
    parts = [tuple(node for node in stage.nodes if node.name not in heads) for stage in stages]
    return [Stage(nodes) for nodes in parts if nodes]


def input_blocks(network: Network) -> dict[str, int]:
    """The channel block of each of the network's inputs: unpadded where only plain convolutions read it."""
    blocks = {}
    for name, shape in network.inputs.items():
        plain = all(isinstance(n.op, Conv2D) and n.op.groups == 1 for n in network.consumers(name))
        blocks[name] = shape[-1] if shape[-1] < 16 and plain else 16
    return blocks


def input_block(network: Network) -> int:
    """The channel block of the only input."""
    (block,) = input_blocks(network).values()
    return block


class Lowering:
    """Everything that the passes of one program share.

    - `measure`, `prepare`, `micro`, `finish`: emitters of the program's lists.
    - `n`, `first`, `trains`: examples of the micro-batch; gradients start anew; there is a backward pass.
    - `rounds`: the precision rounds tensors.
    - `losses`, `controls`: of the outputs, and the numbers that each shares with the host.
    - `logits`: the layer that the loss of each output takes: the one below its head, or the output itself.
    - `stages`, `trained`: the fused network without heads that losses compute themselves, and the names of stages that
      a gradient must reach. Stages below are frozen: they are folded in every program.
    - `values`, `before_norm`, `statistics`, `integer`: left by the forward pass: outputs by layer, inputs of BatchNorms
      that use batch statistics and statistics by stage, and names of stages that multiply integers.
    """

    def __init__(self, request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> None:
        self.request, self.network, self.storage, self.control = request, request.network, storage, storage.control
        self.n, self.first, self.trains = key.examples, key.first, key.kind is Kind.TRAIN
        losses = request.losses
        self.losses = Losses({}) if key.kind is Kind.PREDICT else losses
        self.controls = {name: self._control(name) for name in self.losses.by_output}
        ends = {name: head_of(self.network, name, losses.by_output.get(name)) for name in self.network.outputs}
        self.logits = {name: nodes[0].inputs[0] if nodes else name for name, nodes in ends.items()}
        if self.trains:
            check_heads(self.network, losses)
        heads = self._unread([node for name in self.losses.by_output for node in reversed(ends[name])])
        self.rounds = request.precision != Precision()
        stages = fuse(self.network, sums=not self.rounds)  # else sums are rounded, too
        self.stages = without_heads(stages, heads)
        self.trained = trained_stages(self.network, self.stages)
        self.measure, self.prepare, self.micro, self.finish = (StorageEmitter(traits, storage) for _ in range(4))
        self.micro.training = self.control if self.trains else None
        self.prepare.compute = self.micro.compute = request.compute
        self.inputs = {
            name: Tensor(x.buffer, (self.n, *self.network.inputs[name]), x.block) for name, x in storage.inputs.items()
        }
        measured = self.trains and not traits.gpu and request.optimizer is not None and request.optimizer.measures
        self.quantizers = Quantizers(
            request.precision, storage, self.prepare, self.micro, key.ranges, self.trains, self.first,
            self.measure if measured else None,
        )  # fmt: skip
        self.rematerialiser = Rematerialiser(self.network, request.strategies, self.micro)
        self.values: dict[str, Stored] = dict(self.inputs)
        self.before_norm: dict[str, Stored] = {}
        self.statistics: dict[str, batchnorm.Statistics] = {}
        self.integer: set[str] = set()
        self._halves: dict[str, Tensor] = {}

    def _unread(self, nodes: list[Node]) -> set[str]:
        """Names of those of `nodes`, each before the one that it reads, that none but them and no caller reads."""
        found: set[str] = set()
        outputs = {name for name in self.network.outputs if name not in self.losses.by_output}
        for node in nodes:
            if {reader.name for reader in self.network.consumers(node.name)} <= found and node.name not in outputs:
                found.add(node.name)
        return found

    def _control(self, output: str) -> Control:
        """The numbers of an output that has a loss, with targets for this size of micro-batch."""
        control, shape = self.storage.controls[output], self.network.nodes[output].shape
        rows = (1, self.n * rows_of(shape))
        is_value = self.losses.by_output[output].target_dtype == "float32"
        weights = Tensor(control.weights.buffer, rows) if control.weights else None
        targets = Tensor(control.targets.buffer, (self.n, *shape) if is_value else rows)
        return replace(control, targets=targets, weights=weights)

    def at(self, layer: str) -> None:
        """Attribute what is emitted from here on to `layer`."""
        self.measure.layer = self.prepare.layer = self.micro.layer = self.finish.layer = layer

    def uses_batch(self, stage: Stage) -> bool:
        """True if the stage's BatchNorm uses batch statistics. As in Keras, a frozen one uses the stored ones."""
        if stage.norm is None or not self.trains or self.request.batchnorm != "batch":
            return False
        norm = stage.norm.name
        return not self.network.trainable.isdisjoint({f"{norm}/gamma", f"{norm}/beta"})

    def bias(self, stage: Stage) -> Tensor | None:
        """The bias of the stage's linear op."""
        name = f"{stage.name}/bias"
        return self.storage.parameter(name) if name in self.network.parameters else None

    def master_kernel(self, stage: Stage) -> Tensor:
        """The kernel that is updated."""
        return self.storage.parameter(f"{stage.name}/kernel")

    def stored(self, stage: Stage) -> str:
        """The dtype that the stage's kernels read and write."""
        first = stage.nodes[0]
        takes = first.op.takes_halves(*self.network.input_shapes(first.inputs))
        return self.request.compute.stored if takes else "float32"

    def kernel(self, stage: Stage, view: KernelView | None = None) -> Stored:
        """The kernel, rounded, as `view` of the one that is updated describes it (default: as it is)."""
        kernels, view = self.quantizers.kernels, view or KernelView(self.master_kernel(stage))
        if self.request.compute.stores_halves:
            return self._halved(stage, view)
        rounded = kernels.integers if stage.name in self.integer else kernels.floats
        return rounded(stage.name, view)

    def _halved(self, stage: Stage, view: KernelView) -> Tensor:
        """The kernel as `view` describes it, in halves."""
        dtype = self.request.compute.stored
        name = f"{stage.name}/kernel {'as the input gradient reads it' if view.changes else 'in halves'}"
        if name not in self._halves:
            self.prepare.layer = stage.name
            y = self.storage.tensor(name, view.shape, Role.PREPARED, layer=stage.name, dtype=dtype)
            (BFloat16() if dtype == "bfloat16" else Float16()).emit_encode_weights(self.prepare, view, y)
            self._halves[name] = y
        return self._halves[name]

    def weights(self, node: Node) -> dict[str, Tensor]:
        """All weights of a layer, by role."""
        roles = node.op.weights(*self.network.input_shapes(node.inputs))
        return {role: self.storage.parameter(f"{node.name}/{role}") for role in roles}

    def gradient(self, layer: str, role: str) -> Tensor | None:
        """The gradient of a weight; None if it isn't trained."""
        return self.storage.gradients.get(f"{layer}/{role}")

    def tensors(self) -> dict[str, Stored]:
        """The forward pass's values by layer. Layers of one stage share the value of the last."""
        tensors = dict(self.values)
        for stage in self.stages:
            if stage.output.name in tensors:
                tensors |= {node.name: tensors[stage.output.name] for node in stage.nodes}
                if stage.op and stage.name in self.before_norm:
                    tensors[stage.op.name] = self.before_norm[stage.name]
        return tensors

    def may_multiply_integers(self, stage: Stage) -> bool:
        """True if integer kernels compute the stage once its input is integers."""
        kinds = ("weights", "gradients")
        op = stage.nodes[0].op
        return isinstance(op, LinearOp) and supports(op) and all(self.quantizers.stores(k, stage.name) for k in kinds)


def linear(stage: Stage) -> LinearOp:
    """The stage's linear op."""
    op = stage.nodes[0].op
    assert isinstance(op, LinearOp)
    return op


def norm(stage: Stage) -> tuple[Node, BatchNormalization]:
    """The stage's BatchNorm."""
    assert stage.norm is not None and isinstance(stage.norm.op, BatchNormalization)
    return stage.norm, stage.norm.op
