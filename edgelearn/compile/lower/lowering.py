"""The state of a lowering, shared by its passes."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.compile.memory.rematerialiser import Rematerialiser
from edgelearn.compile.precision.precision import Precision
from edgelearn.compile.precision.quantizers import Quantizers
from edgelearn.compile.program import Kind, ProgramKey
from edgelearn.compile.request import Request
from edgelearn.compile.storage import Storage
from edgelearn.graph.fuse import Stage, fuse, trained_stages
from edgelearn.graph.network import Network, Node
from edgelearn.launch import Role
from edgelearn.ops import BatchNormalization, BFloat16, Conv2D, Float16, LinearOp, Losses, Traits, batchnorm
from edgelearn.ops.control import Control
from edgelearn.ops.loss import rows_of
from edgelearn.ops.quantized import supports
from edgelearn.ops.quantized_tensor import Stored
from edgelearn.ops.tensor import Tensor
from edgelearn.ops.transpose import KernelView

from .emitter import StorageEmitter
from .heads import check_heads, head_of, without_heads


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
        self.rematerialiser = Rematerialiser(self.network, request.activation_memory, self.micro)
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
