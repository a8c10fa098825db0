"""Lowering: from a network to the launches of its programs, and all programs to a plan.

A program has three lists: `prepare`, once a mini-batch (tensors derived from parameters: folded statistics, transposed
kernels); `micro`, for each micro-batch (forward and backward pass, gradients summed); `finish`, once a mini-batch
(gradients completed and checked, weights updated). The backward pass stops at the lowest trained layer: below it
nothing is stored, computed or allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf, prod

import numpy as np

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph.network import Network, Node
from edgelearn.graph.rewrites import Stage, ancestors, fuse, trained_stages
from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    Activation,
    Add,
    BatchNormalization,
    Dense,
    Emitter,
    Epilogue,
    Flatten,
    LinearOp,
    Loss,
    Losses,
    Optimizer,
    Reshape,
    SliceChannels,
    Target,
    Traits,
    batchnorm,
    finish,
    quantize,
)
from edgelearn.ops.arithmetic import Elementwise
from edgelearn.ops.convolution import BySquares
from edgelearn.ops.emit import Answers, Control, GradientSum, Pieces, emit_channel_sums
from edgelearn.ops.finish import emit_finite_check, emit_unscaled
from edgelearn.ops.formats import KernelView, QuantizedTensor, Stored, is_integers, tensor_of
from edgelearn.ops.loss import emit_count, rows_of
from edgelearn.ops.optimizers import AVERAGE, REFERENCE, Clipping, emit_average, emit_commit, emit_proximal
from edgelearn.ops.quantize import WEIGHT_ROWS, Residual
from edgelearn.ops.quantized import adds_residuals
from edgelearn.ops.target import emit_copy, emit_padded
from edgelearn.ops.tensor import BLOCK, LINEAR, Function, Shape, Tensor, pack

from .memory import ActivationMemory, Invert, Mask, Recompute, Store
from .plan import Kind, Plan, Program, ProgramKey
from .precision import Precision
from .rematerialisation import Rematerialisation, Rematerialiser
from .representation import Emit, Representation
from .request import Request
from .storage import ParameterGroup, Storage, lifetimes, place

SQUARES_FROM = 1 << 16  # pixels of the output of a convolution over squares of pixels
HEADS = ("Softmax", "LogSoftmax", "Sigmoid")  # at an output; a loss computes it itself, more exactly
LIKE = {"Softmax": ("Softmax", "LogSoftmax")}  # heads that a loss which names the first computes: names of ops


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


class Lowering:
    """The lowering of one program: forward pass, losses, backward pass, update. Persistent tensors are added to the
    storage. Raises PlanError for a network that can't be trained as the request says.

    Arguments:
    - `request`, `traits`: what is planned, and what the choice of kernels depends on.
    - `storage`: the plan's persistent tensors.
    - `key`: names the program.

    What it holds:
    - `program`: the launches. `rematerialiser` knows the program as it is if everything is stored.
    - `measure`, `prepare`, `micro`, `finish`: emitters of the program's lists.
    - `n`, `first`, `trains`: examples of the micro-batch; gradients start anew; there is a backward pass.
    - `losses`, `controls`: of the outputs, and the numbers that each shares with the host.
    - `logits`: the layer that the loss of each output takes: the one below its head, or the output itself.
    - `numbers`: names of inputs and layers whose values are numbers of rows or steps: rounded, they would name others.
    - `plain`: layers that stay float32 in every precision: outputs, logits and numbers.
    - `stages`, `trained`: the fused network without heads that losses compute themselves, and the names of stages that
      a gradient must reach. Stages below are frozen: they are folded in every program.
    - `held`: the representation of its tensors.
    - `values`, `before_norm`, `statistics`, `integer`: left by the forward pass: outputs by layer, inputs of BatchNorms
      that use batch statistics and statistics by stage, and names of stages that multiply integers.
    - `squares`: convolutions over squares of pixels of the network's input, by stage.
    - `added`: names of layers whose output no launch writes, but its sum with another tensor.
    - `gradients`: of layers' outputs, by name. `unmasked`: names of those not yet multiplied by the derivative of an
      activation, which the last reader's share will be.
    """

    def __init__(self, request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> None:
        self.request, self.network, self.storage = request, request.network, storage
        self.n, self.first, self.trains = key.examples, key.first, key.kind is Kind.TRAIN
        self.losses = Losses({}) if key.kind is Kind.PREDICT else request.losses
        self.controls = {name: self._control(name) for name in self.losses.by_output}
        losses, nodes = request.losses, self.network.nodes
        ends = {name: head_of(self.network, name, losses.by_output.get(name)) for name in self.network.outputs}
        self.logits = {name: head[0].inputs[0] if head else name for name, head in ends.items()}
        numbered = (node.inputs[i] for node in nodes.values() for i in node.op.takes_numbers if i < len(node.inputs))
        self.numbers = ancestors(numbered, lambda x: nodes[x].inputs if x in nodes and nodes[x].op.selects else ())
        self.plain = {*self.network.outputs, *self.logits.values(), *self.numbers}
        if self.trains:
            check_heads(self.network, losses)
        heads = self._unread([node for name in self.losses.by_output for node in reversed(ends[name])])
        self.rounds = request.precision != Precision()
        self.measure, self.prepare, self.micro, self.finish = (
            Emitter(traits, storage, unfused=request.unfused, one_launch=request.one_launch) for _ in range(4)
        )
        self._shared = {node.shares for node in nodes.values()} - {""}
        # Else sums are rounded, too.
        sums = self.micro.fuses("sums") and not self.rounds
        epilogues = self.micro.fuses("epilogues")
        joins = self._joins if epilogues and not (self.rounds or traits.bare) else None
        fused = fuse(self.network, sums=sums, epilogues=epilogues, joins=joins)
        parts = (tuple(node for node in stage.nodes if node.name not in heads) for stage in fused)
        self.stages = [Stage(part) for part in parts if part]
        self.trained = trained_stages(self.network, self.stages, request.input_gradients)
        self.micro.training = storage.control if self.trains and not request.input_gradients else None
        self.prepare.compute = self.micro.compute = request.compute
        self.inputs = {
            name: Tensor(x.buffer, (self.n, *self.network.inputs[name]), x.block) for name, x in storage.inputs.items()
        }
        # On CPUs an update leaves the extremes of the kernels that it writes, which saves a pass over them in
        # `prepare`.
        measured = self.trains and not traits.gpu and request.optimizer is not None and request.optimizer.measures
        self.held = Representation(
            request.precision, request.compute, storage, self.prepare, self.micro, key.ranges, self.trains, self.first,
            self.measure if measured else None,
        )  # fmt: skip
        self.rematerialiser = Rematerialiser(self.network, request.strategies, self.micro)
        self.values: dict[str, Stored] = dict(self.inputs)
        self.before_norm: dict[str, Stored] = {}
        self.statistics: dict[str, batchnorm.Statistics] = {}
        self.integer: set[str] = set()
        self.added: set[str] = set()
        self.gradients: dict[str, Stored] = {}
        self.unmasked: set[str] = set()
        self.shares: dict[Tensor, dict[str, Tensor]] = {}  # of a gradient, by the layers that share its weight
        self._stages = {stage.output.name: stage for stage in self.stages}
        self.views = {name: node for name, node in self._sliced().items() if not self.rounds}
        applies = epilogues and not (self.rounds or traits.gpu or traits.bare)
        self.gates = self._gated() if applies else {}
        self.squares = self._by_squares()
        self._kernels: dict[str, Tensor] = {}  # over squares, by stage
        self._over_squares: list[tuple[BySquares, Tensor, Tensor]] = []  # with the gradients of both kernels
        self._places = {node.name: place for place, stage in enumerate(self.stages) for node in stage.nodes}
        logits = [self.logits[name] for name in self.losses.by_output]
        self._reached = ancestors(logits, lambda name: nodes[name].inputs if name in nodes else ())
        self.program = self._program()

    def _unread(self, nodes: list[Node]) -> set[str]:
        """Names of those of `nodes`, each before the one that it reads, that none but them and no caller reads."""
        found: set[str] = set()
        outputs = {name for name in self.network.outputs if name not in self.losses.by_output}
        for node in nodes:
            if {reader.name for reader in self.network.consumers(node.name)} <= found and node.name not in outputs:
                found.add(node.name)
        return found

    def _sliced(self) -> dict[str, Node]:
        """Slices of a stage's channels that may be views of it, and not copies, by name: together they are all of it,
        and one layer reads them all, so that they are needed for as long as each other."""
        network, found = self.network, dict[str, Node]()
        for source, stage in self._stages.items():
            slices = [node for node in network.consumers(source) if isinstance(node.op, SliceChannels)]
            ends = [(op.start, op.start + op.size) for node in slices if isinstance(op := node.op, SliceChannels)]
            starts, stops = map(sorted, zip(*ends, strict=True)) if ends else ([], [])
            whole = ends and starts == [0, *stops[:-1]] and stops[-1] == stage.output.shape[-1]
            readers = [reader.name for node in slices for reader in network.consumers(node.name)]
            alone = len(slices) == len(network.consumers(source)) == len(readers) and len(set(readers)) == 1
            open_ = self.plain.union(network.outputs).isdisjoint({source, *(node.name for node in slices)})
            if whole and alone and open_ and stage.activation == LINEAR:
                found |= {node.name: node for node in slices}
        return found

    def _gated(self) -> dict[str, Node]:
        """Activations whose derivative follows from their input, by the name of the dense layer that alone is read by
        them: its kernel applies them, too."""
        found = {}
        for stage in self.stages:
            readers = self.network.consumers(stage.name)
            floats = self.dtype(stage) == "float32" and not self.request.compute.uses_units
            plain = len(stage.nodes) == 1 and stage.name not in self.plain
            if plain and floats and type(stage.nodes[0].op) is Dense and len(readers) == 1:
                op = readers[0].op
                if isinstance(op, Activation) and op.gate != LINEAR and readers[0].name not in self.plain:
                    found[stage.name] = readers[0]
        return found

    def _by_squares(self) -> dict[str, BySquares]:
        """Convolutions that matrix units compute over squares of the network's input, by stage: its only readers. Few
        pixels take less time than what moves the kernel and its gradient."""
        found = {}
        for stage in self.stages:
            name, owner = stage.inputs[0], stage.nodes[0].owner
            alone = name in self.inputs and len(self.network.consumers(name)) == 1 and name not in self.plain
            own = owner not in self._shared and not (self.rounds or self.request.input_gradients)
            units = self.request.compute.uses_units and alone and self.inputs[name].block < BLOCK
            if units and own and self.n * prod(stage.nodes[0].shape[:-1]) >= SQUARES_FROM:
                found[stage.name] = BySquares.of(stage.nodes[0].op, self.network.shape_of(name))
        return {name: squares for name, squares in found.items() if squares}

    def _gate_before(self, name: str, reader: Stage | None) -> tuple[str, Function] | None:
        """(the dense layer before layer `name`, the function that `name` is of it), if `reader` alone reads that and
        can multiply what it writes by the derivative."""
        stage = self._stages[name]
        gate, multiplies = self.gates.get(stage.inputs[0]), reader is not None and type(reader.nodes[0].op) is Dense
        if gate is None or gate.name != name or not multiplies or len(self.network.consumers(name)) > 1:
            return None
        assert isinstance(gate.op, Activation)
        return stage.inputs[0], gate.op.gate

    def _view(self, name: str, tensors: Mapping[str, Stored]) -> Tensor | None:
        """The part that layer `name` is of the tensor of its input, if it is a view."""
        if name not in self.views:
            return None
        (source,), op = self.views[name].inputs, self.views[name].op
        whole = tensors.get(source)
        assert isinstance(op, SliceChannels)
        return whole.view(op.start, op.size) if isinstance(whole, Tensor) else None

    def _reshaped(self, stage: Stage) -> Tensor | None:
        """The output of a stage that only gives its input, which nothing else reads, another shape: the same tensor."""
        node, (source, *_) = stage.nodes[0], stage.inputs
        x, below = self.values[source], self._stages.get(source)
        if below is None or self.rounds or not isinstance(node.op, Reshape | Flatten):
            return None
        alone = len(self.network.consumers(source)) == 1 and below.mask == LINEAR
        inner = self.plain.isdisjoint({source, node.name}) and source not in self.views
        if not (alone and inner and isinstance(x, Tensor) and x.block == BLOCK and x.channels == node.shape[-1]):
            return None
        return replace(x, shape=self.shape(node))

    def _control(self, output: str) -> Control:
        """The numbers of an output that has a loss, with targets for this size of micro-batch."""
        control, shape = self.storage.controls[output], self.network.nodes[output].shape
        rows = (1, self.n * rows_of(shape))
        is_value = self.losses.by_output[output].target_dtype == "float32"
        weights = Tensor(control.weights.buffer, rows) if control.weights else None
        targets = Tensor(control.targets.buffer, (self.n, *shape) if is_value else rows)
        return replace(control, targets=targets, weights=weights)

    def with_memory(self, activation_memory: ActivationMemory) -> Program:
        """The same program with other strategies for activations, which hold temporaries alone. Raises PlanError for
        tensors that can't be restored as they say."""
        if not self.trains or self.request.statistics_only:
            return self.program
        remat = self.rematerialiser
        launches, rematerialisation = remat.rewritten(activation_memory)
        return replace(
            self.program, micro=launches + self.micro.launches[remat.end :], rematerialisation=rematerialisation
        )

    def _program(self) -> Program:
        """Emit everything."""
        for name, x in self.inputs.items():
            self._emit_input(name, x)
        for stage in self.stages:
            if stage.output.name not in self.values:  # else the kernel of an earlier one has computed it
                self.at(stage.name)
                self.micro.keeps = self.trains and stage.name in self.trained
                self._forward(stage)
        remat, micro, losses = self.rematerialiser, self.micro, self.losses
        loss_at = len(micro.launches)
        rematerialisation = Rematerialisation(loss_at, loss_at, {}, {}, {})
        if losses.by_output:
            answers = [self._loss(name, loss) for name, loss in losses.by_output.items()]
            if self.trains and self.request.statistics_only:
                self._commit_statistics()
            elif self.trains:
                if not self.gradients:
                    outputs = ", ".join(f"'{name}'" for name in losses.by_output)
                    raise PlanError(
                        f"Nothing to train: the output {outputs} depends on no trained parameter. Unfreeze a layer "
                        f"that leads to it."
                    )
                # As if every activation were stored; `finish` then rewrites the launches by the strategies.
                remat.start(self._tensors(), loss_at)
                for stage in reversed(self.stages):
                    # Nothing below the lowest trained layer is stored: no launch reads it, and lifetimes follow from
                    # launches.
                    if stage.name in self.trained and stage.output.name in self.gradients:
                        self._backward(stage)
                rematerialisation = remat.finish()
                if not self.request.input_gradients:
                    self._update()
            self.at("loss")
            weights = [losses.weight(name) for name in losses.by_output] if len(answers) > 1 else []
            # Last of all: random numbers are drawn by this count, and what is recomputed must draw the same ones.
            emit_count(micro, answers, self.storage.control, self.n, weights)
        self.measure.emit_jobs()
        self.prepare.emit_jobs()
        outputs = {
            name: self.values[self.logits[name] if name in losses.by_output else name] for name in self.network.outputs
        }
        floats = {name: y for name, y in outputs.items() if isinstance(y, Tensor)}
        assert floats.keys() == outputs.keys()
        return Program(
            self.prepare.launches, micro.launches, self.finish.launches, self.inputs, floats, rematerialisation,
            self.measure.launches,
            self._input_gradients(),
        )  # fmt: skip

    def at(self, layer: str) -> None:
        """Attribute what is emitted from here on to `layer`."""
        self.measure.layer = self.prepare.layer = self.micro.layer = self.finish.layer = layer

    # -- of stages -----------------------------------------------------------------------------------------------

    def uses_batch(self, stage: Stage) -> bool:
        """True if the stage's BatchNorm uses batch statistics."""
        return stage.norm is not None and self._uses_batch(stage.norm)

    def _joins(self, before: Node, node: Node) -> bool:
        """True if the kernels of layer `before` can apply the activation `node` in this program: a gate if they use
        batch statistics, since stored ones are applied by the layer before; others where channels fill whole blocks."""
        if before.name in self.plain:
            return False
        if node.op.gate != LINEAR:
            return isinstance(before.op, BatchNormalization) and self._uses_batch(before)
        return node.op.filled != LINEAR and before.op.has_epilogue and before.shape[-1] % BLOCK == 0

    def _uses_batch(self, node: Node) -> bool:
        """True if a BatchNorm uses batch statistics. As in Keras, a frozen one uses the stored ones."""
        if not self.trains or self.request.batchnorm != "batch":
            return False
        norm = node.owner
        if self.network.trainable.isdisjoint({f"{norm}/gamma", f"{norm}/beta"}):
            return False
        if norm in self._shared:
            raise PlanError(
                f"The BatchNormalization '{norm}' is shared by several layers, whose batches have statistics of their "
                f"own: train it with the stored ones, compile(batchnorm='moving'), or freeze it."
            )
        return True

    def multiplies_integers(self, stage: Stage) -> bool:
        """True if integer kernels compute the stage once its input is integers."""
        op = stage.nodes[0].op
        formats = (self.held.stores(kind, stage.name) for kind in ("weights", "gradients"))
        return isinstance(op, LinearOp) and op.has_integer_kernels and all(formats)

    def dtype(self, stage: Stage) -> str:
        """The dtype that the stage's kernels read and write."""
        first = stage.nodes[0]
        takes = first.op.takes_halves(*self.network.input_shapes(first.inputs))
        compared = first.inputs if isinstance(first.op, Elementwise) else ()  # which may be numbers of rows
        exact = not self.numbers.isdisjoint((first.name, *compared))
        return self.request.compute.stored if takes and not exact else "float32"

    def shape(self, node: Node) -> Shape:
        return (self.n, *node.shape)

    def kernel(self, stage: Stage, view: KernelView | None = None) -> Stored:
        """The kernel, rounded, as `view` of the one that is updated describes it (default: as it is)."""
        return self.held.kernel(
            stage.name, view or KernelView(self.master_kernel(stage)), stage.name in self.integer
        )  # fmt: skip

    def master_kernel(self, stage: Stage) -> Tensor:
        """The kernel that is updated, or the one over squares that follows from it."""
        kernel = self.storage.parameter(f"{stage.nodes[0].owner}/kernel")
        if stage.name not in self.squares:
            return kernel
        if stage.name not in self._kernels:
            self._kernels[stage.name] = self.squares[stage.name].emit_kernel(self.prepare, kernel)
        return self._kernels[stage.name]

    def linear(self, stage: Stage) -> LinearOp:
        """The stage's linear op, or the one over squares in its place."""
        op = stage.nodes[0].op
        assert isinstance(op, LinearOp)
        return self.squares[stage.name].op if stage.name in self.squares else op

    def bias(self, stage: Stage) -> Tensor | None:
        """The bias of the stage's linear op."""
        name = f"{stage.nodes[0].owner}/bias"
        return self.storage.parameter(name) if name in self.network.parameters else None

    def weights(self, node: Node) -> dict[str, Tensor]:
        """All weights of a layer, by role."""
        roles = node.op.weights(*self.network.input_shapes(node.inputs))
        return {role: self.storage.parameter(f"{node.owner}/{role}") for role in roles}

    def gradient(self, layer: str, role: str) -> Tensor | None:
        """The gradient of a weight; None if it isn't trained. Of layers that share one, all but the first to ask write
        shares of their own, which `_update` adds to it."""
        owner = self.network.nodes[layer].owner
        total = self.storage.gradients.get(f"{owner}/{role}")
        if total is None or owner not in self._shared:
            return total
        shares = self.shares.setdefault(total, {})
        if layer not in shares:
            tensor = self.storage.tensor(f"{layer}/{role} share", total.shape, Role.GRADIENT) if shares else total
            shares[layer] = tensor
        return shares[layer]

    def _tensors(self) -> dict[str, Stored]:
        """The forward pass's values by layer, and the states and gates of recurrent layers by step. Layers of one stage
        share the value of the last."""
        tensors = self.values | self.micro.steps
        tensors |= {name: self.values[node.inputs[0]] for name, node in self.views.items() if self._view(name, tensors)}
        for stage in self.stages:
            if stage.output.name in tensors:
                tensors |= {node.name: tensors[stage.output.name] for node in stage.nodes}
                if stage.op and stage.name in self.before_norm:
                    tensors[stage.op.name] = self.before_norm[stage.name]
        for name in self.added:
            del tensors[name]
        return tensors

    # -- forward pass --------------------------------------------------------------------------------------------

    def _emit_input(self, name: str, x: Tensor) -> None:
        """Round an input of the network, to integers if all its readers multiply them. Matrix units and halves need it
        in blocks of 16 channels."""
        self.at(name)
        compute = self.request.compute
        if name in self.numbers:
            wide = compute.uses_units and x.block < BLOCK
            self.values[name] = self._converted(x, "float32", "padded") if wide else x
            return
        readers = [stage for stage in self.stages if name in stage.inputs]
        integers = self.held.stores("activations", name) and all(map(self.multiplies_integers, readers))
        value = self.held.rounded("activations", name, x, integers, is_input=True)
        if isinstance(value, QuantizedTensor):
            if integers and x.block < BLOCK and self.micro.traits.matrix_unit:
                value = quantize.emit_padded_integers(self.micro, value)
        elif squares := next((self.squares[stage.name] for stage in readers if stage.name in self.squares), None):
            value = squares.emit_input(self.micro, value, compute.stored)
        elif compute.stores_halves or (compute.uses_units and value.block < BLOCK):
            value = self._converted(value, compute.stored, "padded")
        self.values[name] = value

    def _converted(self, x: Tensor, dtype: str, name: str) -> Tensor:
        y = self.micro.tensor(name, x.shape, dtype=dtype)
        emit_padded(self.micro, x, y)
        return y

    def _forward(self, stage: Stage) -> None:
        """Emit a stage, and leave its output in `values`, rounded."""
        inputs = [self.values[name] for name in stage.inputs]
        x, out = inputs[0], stage.output.name
        if view := self._view(out, self.values) or self._reshaped(stage):
            self.values[out] = view
        elif isinstance(x, QuantizedTensor) and is_integers(x) and self.multiplies_integers(stage):
            self.integer.add(stage.name)
            self._multiply_integers(stage, x)
        elif y := self._into_norm(stage) or (out not in self.plain and self._of_integers(stage, inputs)):
            self.values[out] = y
        else:
            with self.held.read_as(inputs, self.dtype(stage)) as own:
                self.values[out] = self._of_floats(stage, own)

    def _of_floats(self, stage: Stage, inputs: list[Tensor]) -> Stored:
        """The output of a stage whose kernels read and write floats or halves."""
        x, op = inputs[0], stage.op
        if self.uses_batch(stage):
            return self._normalize(stage, self._before_norm(stage, x) if stage.is_linear else x)
        out = self.micro.tensor("output", self.shape(stage.output), dtype=self.dtype(stage))
        if stage.name in self.gates:
            self._multiply_gated(stage, x, out)
        elif stage.is_linear:
            self._multiply(stage, x, out)
        elif op is None:
            batchnorm.emit_normalize(self.micro, x, self._kept_statistics(stage), Target(out), stage.activation)
        elif isinstance(op.op, Add) and stage.activation != LINEAR:
            op.op.emit_activated(self.micro, x, inputs[1], out, stage.activation)
        else:
            op.op.emit_forward(self.micro, [*inputs, *self.weights(op).values()], out)
        return self._rounded(stage, out)

    def _into_norm(self, stage: Stage) -> Tensor | None:
        """The sum of two tensors, computed by the launch that normalizes one of them, which nothing else reads; None if
        there is none."""
        if self.rounds or stage.op is None or type(stage.op.op) is not Add or len(set(stage.inputs)) != 2:
            return None
        values = [tensor_of(self.values[name]) for name in stage.inputs]
        dtype = "float32" if stage.output.name in self.plain else self.request.compute.stored
        if any(x.dtype != dtype or x.shape != self.shape(stage.output) for x in values):
            return None
        for name, x, other in zip(stage.inputs, values, values[::-1], strict=True):
            below = self._stages.get(name)
            read_once = len(self.network.consumers(name)) == 1 and name not in self.network.outputs
            if below is None or not read_once or below.activation != LINEAR or self._reshaped(below):
                continue
            if self.micro.tail_of(x, "residual"):
                out = self.micro.tensor("output", x.shape, dtype=dtype)
                self.micro.add_residual(x, other, out, stage.activation)
                self.added.add(name)
                return out
        return None

    def _of_integers(self, stage: Stage, inputs: list[Stored]) -> Stored | None:
        """The output, in integers, of a sum or an activation of integers or of a selection among them; None for other
        stages."""
        integers = [x for x in inputs if isinstance(x, QuantizedTensor) and is_integers(x)]
        if stage.op is None or len(integers) < len(inputs):
            return None
        if stage.op.op.selects_integers:
            (x,) = integers
            y = replace(x, tensor=self.micro.tensor("encoded activations", self.shape(stage.output), dtype="int8"))
            stage.op.op.emit_forward(self.micro, [x.tensor], y.tensor)
            return y
        activation = stage.op.op.activation_of_integers([x.shape for x in integers])
        if activation is None or not self.held.stores("activations", stage.output.name):
            return None

        def emit(target: Target) -> None:
            quantize.emit_integer_sum(self.micro, integers, target, activation)

        return self.held.written("activations", stage.output.name, integers[0].shape, emit)

    def _rounded(self, stage: Stage, out: Tensor) -> Stored:
        """A stage's output as the rest of the network reads it: rounded, or in float32 if the loss or a caller does."""
        name = stage.output.name
        dtype = "float32" if name in self.plain else self.request.compute.stored
        if out.dtype != dtype:
            return self._converted(out, dtype, f"output in {dtype}")
        if name in self.plain:
            return out
        if stage.output.op.selects:
            return self.held.selected([self.values[name] for name in stage.inputs], out)
        return self.held.rounded("activations", name, out)

    def _output(self, stage: Stage, emit: Emit, direct: bool) -> Stored:
        """A stage's output, which `emit` writes to a target: rounded as it is written if `direct`, else afterwards."""
        name, shape = stage.output.name, self.shape(stage.output)
        if direct and name not in self.plain and self.micro.fuses("rounding"):
            return self.held.written("activations", name, shape, emit, self.held.stores("activations", name))
        out = self.micro.tensor("output", shape, dtype=self.dtype(stage))
        emit(Target(out))
        return self._rounded(stage, out)

    # -- forward pass of linear ops ------------------------------------------------------------------------------

    def _multiply(self, stage: Stage, x: Tensor, out: Tensor) -> None:
        """A linear op on floats, with stored statistics if a BatchNorm follows: folded where both are frozen."""
        frozen = stage.name not in self.trained and self.held.format("weights", stage.name) is None
        folds = stage.norm is not None and stage.name not in self.squares and not self.request.compute.stores_halves
        if frozen and folds:
            kernel, bias = self._folded(stage)
            kernel = self.held.prepared(self.linear(stage).forward_view(self.prepare, x, kernel))
            self.linear(stage).emit_linear(self.micro, x, kernel, out, Epilogue(None, bias, stage.activation))
            return
        with self._forward_kernel(stage, x) as (kernel,):
            self.linear(stage).emit_linear(self.micro, x, kernel, out, self._epilogue(stage))

    def _multiply_gated(self, stage: Stage, x: Tensor, out: Tensor) -> None:
        """A dense layer on floats, and the activation after it in the same launch, which leaves `out`, what that is of,
        if the backward pass will read it. They are recomputed one by one."""
        node, bias = self.gates[stage.name], self.bias(stage)
        assert isinstance(node.op, Activation)
        before = self.micro.layer
        self.micro.layer = node.name
        y = self.micro.tensor("output", self.shape(node))
        self.micro.layer = before
        kept = out if self.micro.keeps else None
        with self._forward_kernel(stage, x) as (kernel,):
            self.linear(stage).emit_linear(self.micro, x, kernel, y, Epilogue(None, bias, node.op.gate, kept))
            with self.micro.replay():
                self.linear(stage).emit_linear(self.micro, x, kernel, out, Epilogue(None, bias))
                node.op.emit_forward(self.micro, [out], y)
        self.values[node.name] = y

    def _forward_kernel(self, stage: Stage, x: Tensor) -> AbstractContextManager[list[Tensor]]:
        """The kernel as the stage's linear op reads it, given `x`."""
        view = self.linear(stage).forward_view(self.prepare, x, self.master_kernel(stage))
        return self.held.read_as([self.kernel(stage, view)], x.dtype)

    def _before_norm(self, stage: Stage, x: Tensor) -> Stored:
        """The output of a linear op on floats, which batch statistics normalize."""
        epilogue = Epilogue(None, self.bias(stage))

        def emit(target: Target) -> None:
            with self._forward_kernel(stage, x) as (kernel,):
                self.linear(stage).emit_linear(self.micro, x, kernel, target.tensor, epilogue)

        return self._norm_input(stage, emit, False, x.dtype)

    def _norm_input(self, stage: Stage, emit: Emit, direct: bool, dtype: str = "float32") -> Stored:
        shape = self.shape(stage.nodes[0])
        return self.held.result("norm_inputs", stage.name, shape, emit, "before BatchNorm", direct, dtype=dtype)

    def _multiply_integers(self, stage: Stage, x: QuantizedTensor) -> None:
        """A linear op on integers, and the sums after it that its kernel can compute."""
        op, kernel, held, after = self.linear(stage), self.kernel(stage), self.held, self._stages_after(stage, x)

        def emit(target: Target, epilogue: Epilogue, *added: Residual) -> None:
            op.emit_linear(self.micro, x, kernel, target, epilogue, *added)

        if self.uses_batch(stage):
            epilogue = Epilogue(None, self.bias(stage))
            direct = held.stores("norm_inputs", stage.name)
            y = self._normalize(stage, self._norm_input(stage, lambda target: emit(target, epilogue), direct))
        else:
            epilogue, added = self._epilogue(stage), [self._residual(stage, after)] if after else []
            direct = held.stores("activations", (after or [stage])[-1].output.name)
            y = self._output((after or [stage])[-1], lambda target: emit(target, epilogue, *added), direct)
        self.values |= dict.fromkeys((each.output.name for each in (stage, *after)), y)

    def _stages_after(self, stage: Stage, x: QuantizedTensor) -> list[Stage]:
        """The stages that the kernel of `stage`, which multiplies the integers `x`, can compute, too, in a program
        without a backward pass: the next one if it adds another stored tensor, and the one after that if it is an
        activation. Nothing else reads what is between."""
        found: list[Stage] = []
        depthwise = self.linear(stage).geometry(x.tensor).kind == "depthwise"
        # A backward pass reads what is between; kernels of depthwise convolutions have no such sum.
        if self.trains or depthwise or not adds_residuals(self.micro, x):
            return found
        start = self.stages.index(stage) + 1
        for follows, after in zip((self._adds, self._activates), self.stages[start : start + 2], strict=False):
            before = (found or [stage])[-1].output
            alone = len(self.network.consumers(before.name)) == 1 and self._knows_range(before)
            if not alone or after.op is None or not follows(before, after) or not self._knows_range(after.output):
                break
            found.append(after)
        return found

    def _adds(self, before: Node, after: Stage) -> bool:
        """True if a stage adds the integers of another tensor to `before`."""
        others = [self.values.get(name) for name in after.inputs if name != before.name]
        if not isinstance(after.nodes[0].op, Add) or len(after.inputs) != 2 or len(others) != 1:
            return False
        (x,) = others
        return isinstance(x, QuantizedTensor) and is_integers(x) and x.shape[1:] == before.shape

    def _activates(self, before: Node, after: Stage) -> bool:
        """True if a stage is an activation of `before`."""
        return after.inputs == (before.name,) and after.nodes[0].op.activation_of_integers([before.shape]) is not None

    def _knows_range(self, node: Node) -> bool:
        """True if a layer's output is stored as integers by a range that is known before it is computed."""
        held, kind = self.held, "activations"
        ranged = held.stores(kind, node.name) and held.quantizes(kind, node.name)
        return node.name not in self.plain and ranged and held.is_static(kind)

    def _residual(self, stage: Stage, after: list[Stage]) -> Residual:
        """The sum that the kernel of `stage` computes for the stages `after` it. Their ranges come into use."""
        (other,) = (self.values[name] for name in after[0].inputs if name != stage.output.name)
        own = self.held.known_range("activations", stage.output.name)
        assert isinstance(other, QuantizedTensor)
        if len(after) == 1:
            return Residual(own, other)
        activation = after[1].nodes[0].op.activation_of_integers([other.shape])
        assert activation
        return Residual(own, other, self.held.known_range("activations", after[0].output.name), activation)

    def _epilogue(self, stage: Stage) -> Epilogue:
        """Bias or stored statistics, and the activation."""
        if stage.norm is None:
            return Epilogue(None, self.bias(stage), stage.activation)
        s = self._kept_statistics(stage)
        return Epilogue(s.scale, s.shift, stage.activation)

    def _folded(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """A frozen linear op and the frozen BatchNorm after it as one kernel and one bias."""
        (node, op), shape = norm(stage), self.network.parameters[f"{stage.nodes[0].owner}/kernel"].weight.packed_shape

        def fold(weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            # In float64, so that the folded kernel is rounded once.
            w = {role: weights[f"{node.owner}/{role}"].astype(np.float64) for role in op.weights(node.shape)}
            scale = w["gamma"] / np.sqrt(w["moving_variance"] + op.epsilon)
            owner = stage.nodes[0].owner
            kernel = weights[f"{owner}/kernel"].astype(np.float64).reshape(shape)
            bias = weights.get(f"{owner}/bias", np.float64(0.0))
            return kernel * scale, w["beta"] + (bias - w["moving_mean"]) * scale

        constant = self.storage.constant
        return (
            constant(f"{stage.name}/folded kernel", shape, lambda w: pack(fold(w)[0])),
            constant(f"{stage.name}/folded bias", shape[-1:], lambda w: pack(fold(w)[1])),
        )

    # -- forward pass of BatchNorm -------------------------------------------------------------------------------

    def _kept_statistics(self, stage: Stage) -> batchnorm.Statistics:
        """The stored statistics of the stage's BatchNorm, with the linear op's bias."""
        node, op = norm(stage)
        bias = self.bias(stage) if stage.is_linear else None
        s = batchnorm.emit_kept_statistics(self.prepare, op, self.weights(node), bias)
        self.statistics[stage.name] = s
        return s

    def _normalize(self, stage: Stage, y: Stored) -> Stored:
        """The output of a stage whose BatchNorm normalizes `y` with the micro-batch's statistics."""
        (node, op), statistics = norm(stage), self.statistics
        moving = {role: self.storage.moving(f"{node.name}/{role}") for role in ("moving_mean", "moving_variance")}
        weights = self.weights(node) | moving
        self.before_norm[stage.name] = y

        def emit(target: Target) -> None:
            # Taken twice, a batch's statistics would move the moving ones twice.
            if stage.name in statistics:  # a replay
                batchnorm.emit_normalize(self.micro, y, statistics[stage.name], target, stage.activation)
            else:
                statistics[stage.name] = batchnorm.emit_batch(self.micro, op, y, weights, target, stage.activation)

        return self._output(stage, emit, self.held.quantizes("activations", stage.output.name))

    # -- losses --------------------------------------------------------------------------------------------------

    def _loss(self, name: str, loss: Loss) -> Answers:
        """Emit the loss of output `name` and, in training, the gradient of what it takes, through the activation if one
        is fused. Raises PlanError if the loss doesn't fit its output."""
        source, control = self.logits[name], self.controls[name]
        logits = self.values[source]
        loss.check(logits.shape[1:], self.n)
        assert isinstance(logits, Tensor)
        target = self._target(source, logits) if self.trains else None
        self.at("loss")
        # A loss writes a whole gradient: a copy multiplies it by an activation's derivative, or adds it to other
        # shares.
        if target is None or not (target.mask or target.accumulate):
            return loss.emit(self.micro, logits, control, target.tensor if target else None)
        gradient = self.micro.tensor("logits' gradient", logits.shape)
        answers = loss.emit(self.micro, logits, control, gradient)
        emit_copy(self.micro, gradient, target)
        return answers

    # -- backward pass -------------------------------------------------------------------------------------------

    def _backward(self, stage: Stage) -> None:
        """Emit the gradients of a stage's inputs and weights."""
        if stage.op and stage.op.op.invertible:
            self.at(stage.name)
            self.rematerialiser.invert(stage.op)
        dz, inputs = self.gradients[stage.output.name], [self.values[name] for name in stage.inputs]
        if stage.name in self.integer:
            self.at(stage.name)
            self._backward_integers(stage, inputs[0], dz)
            return
        assert isinstance(dz, Tensor)
        if self._through_integers(stage, dz) or self._view(stage.output.name, self.values):
            return  # the gradient of a view is part of its input's
        if (y := self._reshaped(stage)) and self._below(stage.inputs[0]):
            assert y.rows == dz.rows
            self.gradients[stage.inputs[0]] = replace(dz, shape=inputs[0].shape)
            return
        dtype, passed = self.dtype(stage), self._pass_on(stage, dz)
        with self.held.read_as([*inputs, self.values[stage.output.name], dz], dtype) as (*own, y, dz):
            targets = [
                None if name in passed else self._target(name, value if isinstance(value, Tensor) else x, stage)
                for name, value, x in zip(stage.inputs, inputs, own, strict=True)
            ]
            self.at(stage.name)
            with self.held.written_as(targets, dtype) as targets:
                if stage.is_linear:
                    self._backward_floats(stage, own[0], dz, targets[0])
                elif stage.op is None:
                    self._backward_norm(stage, own[0], dz, targets[0])
                else:
                    self._backward_op(stage.op, own, y, dz, targets)

    def _target(self, name: str, value: Stored, reader: Stage | None = None) -> Target | None:
        """Where `reader`, or the loss, writes the gradient of layer `name`, whose output is `value`; None if nothing
        below is trained."""
        stage = self._below(name)
        if stage is None:
            return self._input_target(name)
        if gate := self._gate_before(name, reader):
            source, function = gate
            below = self._target(source, self.values[source])
            return replace(below, mask=self.values[source], activation=function) if below else None
        accumulate = name in self.gradients
        if not accumulate:
            view = self._view(name, self.values)
            source = self._stages[self.views[name].inputs[0]] if view else stage
            if source.output.name not in self.gradients:
                self.at(source.name)
                dtype = value.dtype if isinstance(value, Tensor) else "float32"
                gradient = self.micro.tensor("output gradient", self.shape(source.output), dtype=dtype)
                self.gradients[source.output.name] = gradient
            if view:
                part = self._view(name, self.gradients)
                assert part
                self.gradients[name] = part
        masks_sum = name in self.unmasked and self._last_writer(name, reader) is None
        if masks_sum:
            self.unmasked.remove(name)
        mask = value if stage.mask != LINEAR and name not in self.unmasked else None
        return Target(self.gradients[name], mask, stage.mask, accumulate, masks_sum=masks_sum)

    def _input_gradients(self) -> dict[str, Tensor]:
        """Gradients of the network's inputs, by name. Raises PlanError if the loss has none by one of them."""
        if not (self.trains and self.request.input_gradients):
            return {}
        written = {buffer for launch in self.micro.launches for buffer in launch.writes}
        found = {name: y for name in self.inputs if isinstance(y := self.gradients.get(name), Tensor)}
        if missing := [name for name in self.inputs if name not in found or found[name].buffer not in written]:
            raise PlanError(
                f"The loss has no gradient by the input '{missing[0]}': no layer leads one from it to there."
            )
        return found

    def _input_target(self, name: str) -> Target | None:
        """Where the gradient of an input of the network is written, if it is asked for."""
        if not (self.trains and self.request.input_gradients and name in self.inputs):
            return None
        accumulate = name in self.gradients
        if not accumulate:
            self.at(name)
            self.gradients[name] = self.micro.tensor("gradient", self.inputs[name].shape)
        return Target(self.gradients[name], accumulate=accumulate)

    def _below(self, name: str) -> Stage | None:
        """The trained stage whose output is `name`."""
        stage = self._stages.get(name)
        return stage if self.trains and stage and stage.name in self.trained else None

    def _last_writer(self, name: str, reader: Stage | None) -> Node | None:
        """The last of the layers before `reader` that will add their shares to the gradient of layer `name`: the first
        one of the network, whose backward pass runs in reverse. None if there is none."""
        end = self._places[reader.name] if reader else inf
        readers = (node for node in self.network.consumers(name) if node.name in self._reached)
        before = (node for node in readers if self._places[node.name] < end)
        return min(before, key=lambda node: self._places[node.name], default=None)

    def _pass_on(self, stage: Stage, dz: Tensor) -> list[str]:
        """Names of the inputs of a sum whose gradient is `dz` itself, without a copy: those that only read it, and one
        other, which may add to it or pass it on, if those are done with it by then."""
        # A residual sum would else copy its gradient to each input: a pass over memory for each block of a network.
        if not (stage.op and stage.op.op.passes_gradient):
            return []
        consumers, places = self.network.consumers, self._places
        takers = [name for name in stage.inputs if stage.inputs.count(name) == 1 and self._takes(name, dz, stage)]
        passed = [name for name in takers if len(consumers(name)) == 1 and not _passes(self._stages[name])]
        read = [places[name] for name in passed]
        for name in takers:
            changes = [name, *(node.name for node in consumers(name) if node.name != stage.op.name)]
            if name not in passed and all(places[change] < place for change in changes for place in read):
                passed.append(name)
                break
        self.gradients |= dict.fromkeys(passed, dz)
        self.unmasked |= {name for name in passed if self._stages[name].mask != LINEAR}
        return passed

    def _takes(self, name: str, dz: Tensor, reader: Stage) -> bool:
        """True if `dz` can be the gradient of layer `name`, which has none yet, or what others add their shares to."""
        below, value = self._below(name), self.values[name]
        if below is None or name in self.gradients:
            return False
        if below.mask != LINEAR:
            last = self._last_writer(name, reader)
            if self.rounds or last is None or not last.op.masks_sums:
                return False
        dtype = value.dtype if isinstance(value, Tensor) else "float32"
        in_place = below.is_linear and below.name not in self.integer  # where a gradient is rounded, unless to integers
        rounded = in_place and self.held.format("gradients", below.name) is not None
        return not rounded and (value.shape, dtype) == (dz.shape, dz.dtype)

    def _through_integers(self, stage: Stage, dz: Tensor) -> bool:
        """Emit the gradient of an activation that left integers, or of a selection among them, which reads them as they
        are stored; False for another stage."""
        name = stage.inputs[0]
        x, y, below = self.values[name], self.values[stage.output.name], self._below(name)
        if stage.op is None or not isinstance(y, QuantizedTensor) or not is_integers(y):
            return False
        op, selects = stage.op.op, stage.op.op.selects_integers and is_integers(x)
        function = op.activation_of_integers([y.shape])
        if not selects and (not function or function == LINEAR or (below and below.activation != LINEAR)):
            return False
        target = self._target(name, x, stage)
        self.at(stage.name)
        if target and selects:
            op.emit_backward(self.micro, [tensor_of(x)], y.tensor, dz, [target])
        elif target and function:
            quantize.emit_to_floats(self.micro, dz, replace(target, mask=y, activation=function))
        return True

    def _backward_op(
        self, node: Node, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[Target | None]
    ) -> None:
        """An op with launches of its own."""
        weights = self.weights(node)
        totals = [self.gradient(node.name, role) for role in weights]
        targets = targets + [Target(t, accumulate=not self.first) if t else None for t in totals]
        if any(targets):
            parts = node.op.emit_backward(self.micro, [*inputs, *weights.values()], y, dy, targets) or ()
            sums = {part.total: part for part in parts}
            for total in filter(None, totals):
                finish.emit_sum(self.finish, sums.get(total, GradientSum(total)))

    def _backward_norm(self, stage: Stage, y: Stored, dz: Tensor, target: Target | None) -> None:
        """The gradients of a BatchNorm's input `y` and of gamma and beta."""
        s, (node, _) = self.statistics[stage.name], norm(stage)
        dgamma, dbeta = (
            self.gradient(node.name, role) or self._workspace(stage, f"unused {role} gradient", s.scale)
            for role in ("gamma", "beta")
        )
        stored = not self.uses_batch(stage)
        # Rounded, z isn't what scale and shift give.
        z = None if stored or self.rounds else self.values[stage.output.name]
        batchnorm.emit_backward(self.micro, y, dz, s, dgamma, dbeta, target, stored, not self.first, z, stage.gate)
        for gradient in (dgamma, dbeta):
            finish.emit_sum(self.finish, GradientSum(gradient))

    # -- backward pass of linear ops -----------------------------------------------------------------------------

    def _backward_floats(self, stage: Stage, x: Tensor, dz: Tensor, target: Target | None) -> None:
        """A linear op that multiplies floats."""
        dy, statistics = self._through_norm(stage, dz, integers=False)
        self._parameter_gradients(stage, x, dy, statistics)
        if target is not None:
            assert isinstance(dy, Tensor)
            op, scale = self.linear(stage), statistics.scale if statistics else None
            view = op.backward_view(self.prepare, x, self.master_kernel(stage), scale)
            with self.held.read_as([self.kernel(stage, view)], dy.dtype) as (kernel,):
                op.emit_backward_data(self.micro, x, kernel, dy, target)

    def _backward_integers(self, stage: Stage, x: Stored, dz: Stored) -> None:
        """A linear op that multiplies integers."""
        assert isinstance(x, QuantizedTensor)
        op, name = self.linear(stage), stage.inputs[0]
        dy, statistics = self._through_norm(stage, dz, integers=True)
        self._parameter_gradients(stage, x, dy, statistics)
        below = self._below(name)
        if below is None:
            return
        kernel = self.kernel(
            stage, op.view(x.tensor, self.master_kernel(stage), statistics.scale if statistics else None)
        )

        def emit(target: Target) -> None:
            op.emit_backward_data(self.micro, x.tensor, kernel, dy, target)

        single = len(self.network.consumers(name)) == 1 and name not in self.gradients and self.micro.fuses("rounding")
        if single and below.name in self.integer and not self.uses_batch(below):  # which multiplies it as integers
            mask = x if below.activation != LINEAR else None
            self.gradients[name] = self.held.written(
                "gradients", below.name, x.tensor.shape,
                lambda target: emit(replace(target, mask=mask, activation=below.activation)),
            )  # fmt: skip
        elif target := self._target(name, x):
            self.at(stage.name)
            emit(target)

    def _through_norm(self, stage: Stage, dz: Stored, integers: bool) -> tuple[Stored, batchnorm.Statistics | None]:
        """(gradient of the linear op's output, rounded, as `integers` if asked for; None). With stored statistics
        instead (`dz` rounded, these): scale and shift are applied elsewhere."""
        layer = stage.name
        if not self.uses_batch(stage):
            dy = dz if isinstance(dz, QuantizedTensor) else self.held.rounded("gradients", layer, dz, integers)
            return dy, self.statistics.get(layer)
        assert isinstance(dz, Tensor)

        def emit(target: Target) -> None:
            self._backward_norm(stage, self.before_norm[layer], dz, target)

        direct, name = self.held.quantizes("gradients", layer), "gradient before BatchNorm"
        return self.held.result("gradients", layer, dz.shape, emit, name, direct, integers, dz.dtype), None

    def _parameter_gradients(
        self, stage: Stage, x: Stored, dy: Stored, statistics: batchnorm.Statistics | None
    ) -> None:
        """Emit the gradients of a stage's kernel and bias from its input and output gradient.

        With stored `statistics`, `dy` is the gradient after scale and shift: those of kernel, bias, gamma and beta
        follow from the sums of its products (see kernels/finish.cl).
        """
        dkernel, dbias = (self.gradient(stage.name, role) for role in ("kernel", "bias"))
        if dkernel and stage.name in self.squares:
            whole, dkernel = dkernel, self._workspace(stage, "gradient over squares", self.master_kernel(stage))
            self._over_squares.append((self.squares[stage.name], dkernel, whole))
        if statistics is None:
            for part in filter(None, self._sums(stage, x, dy, dkernel, dbias)[::-1]):
                finish.emit_sum(self.finish, part)
            return
        # The linear op's output isn't stored. Since it is linear, with sums over the mini-batch: dbeta = Σ dy, dgamma =
        # (Σ w · xᵀdy + (bias - mean) Σ dy) / σ, dw = scale · xᵀdy. `finish` computes these once a mini-batch.
        dgamma, dbeta = (self.gradient(norm(stage)[0].name, role) for role in ("gamma", "beta"))
        kernel_total, dy_total = dkernel, dbeta
        # gamma's gradient is made of sums that belong to a frozen kernel and beta, too.
        if dgamma and not dkernel:
            kernel_total = self._workspace(stage, "kernel gradient for gamma", self.master_kernel(stage))
        if (dgamma or dbias) and not dbeta:
            dy_total = self._workspace(stage, "sum of gradients", statistics.scale)
        kernel_sum, dy_sum = self._sums(stage, x, dy, kernel_total, dy_total)
        if dy_sum:
            finish.emit_sum(self.finish, dy_sum)
        if kernel_sum:
            kernel = self.kernel(stage) if dgamma else None
            products = finish.emit_kernel_sum(self.finish, kernel_sum, statistics, kernel)
            if dgamma and products and dy_total:
                finish.emit_gamma(self.finish, products, statistics, self.bias(stage), dy_total, dgamma)
        if dbias and dy_total:
            finish.emit_bias(self.finish, dy_total, statistics, dbias)

    def _workspace(self, stage: Stage, name: str, like: Tensor) -> Tensor:
        """Memory for a gradient of no trained parameter, from which that of another one is computed."""
        return self.storage.tensor(f"{stage.name}/{name}", like.shape, Role.GRADIENT)

    def _sums(
        self, stage: Stage, x: Stored, dy: Stored, kernel_total: Tensor | None, dy_total: Tensor | None
    ) -> tuple[GradientSum | None, GradientSum | None]:
        """Add the products of x and dy to `kernel_total`, and dy to `dy_total`, where these are given; the sums that
        are to be completed."""
        op, micro, add = self.linear(stage), self.micro, not self.first
        if kernel_total:
            return op.emit_backward_weights(micro, x, dy, kernel_total, dy_total, add)
        if isinstance(dy, QuantizedTensor):
            return None, quantize.emit_integer_channel_sums(micro, dy, dy_total, add) if dy_total else None
        return None, emit_channel_sums(micro, dy, dy_total, add) if dy_total else None

    # -- update --------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        """Check the gradients, commit statistics, update the parameters: every launch does nothing if a gradient is NaN
        or infinite."""
        storage, finish, control, optimizer = self.storage, self.finish, self.storage.control, self.request.optimizer
        assert optimizer is not None
        self.held.check(finish)
        self.at("optimizer")
        finish.emit_jobs()
        for squares, over_squares, gradient in self._over_squares:
            squares.emit_gradient(finish, over_squares, gradient)
        for gradient, shares in self.shares.items():
            for share in list(shares.values())[1:]:
                emit_copy(finish, share, Target(gradient, accumulate=True))
        total = storage.sizes[Role.PARAMETER]
        whole = storage.stretch(Role.GRADIENT, 0, total)
        if self.request.compute.scales_loss:
            emit_unscaled(finish, whole, control)
        clipping = Clipping(optimizer, [g.buffer for g in storage.gradients.values()], whole, control)
        factors = clipping.emit_factors(finish)
        emit_finite_check(finish, storage.stretch(Role.CHECK, 0, storage.sizes[Role.CHECK]), control)
        self.held.learn(finish)
        finish.emit_jobs()
        self.at("optimizer")
        self._commit_statistics()
        if optimizer.clips:
            clipping.emit(finish, factors)
        parameters, slots = storage.stretch(Role.PARAMETER, 0, total), {slot.name: slot for slot in storage.slots}
        if optimizer.proximal:
            emit_proximal(finish, optimizer, parameters, whole, slots[REFERENCE], control)
        self._emit_rules(optimizer)
        if optimizer.use_ema:
            emit_average(finish, optimizer, parameters, slots[AVERAGE], control)

    def _commit_statistics(self) -> None:
        """A step moves a copy of the statistics: one that fails leaves the lasting ones as they were."""
        storage = self.storage
        if statistics := storage.sizes.get(Role.STATISTICS):
            lasting, moving = (storage.stretch(role, 0, statistics) for role in (Role.STATISTICS, Role.MOVING))
            emit_commit(self.prepare, lasting, moving, storage.control)
            emit_commit(self.finish, moving, lasting, storage.control)

    def _emit_rules(self, optimizer: Optimizer) -> None:
        """Emit the optimizer's rule, for all parameters at once or tensor by tensor."""
        storage, finish, groups = self.storage, self.finish, list(self.storage.groups)
        if optimizer.per_tensor:
            for group in groups:
                rule, control = self._rule(optimizer, group)
                for name in group.names:
                    w, g = (tensors[name].buffer for tensors in (storage.parameters, storage.gradients))
                    slots = [storage.slot_tensors[f"{slot}/{name}"].buffer for slot in optimizer.slots]
                    rule.emit_update(finish, w, g, slots, control, group.decay > 0)
            finish.emit_jobs()
            return
        starts = [storage.offsets[slot] for slot in storage.slots if slot.name in optimizer.slots]
        # Parameters lie side by side: those updated alike are one launch, whatever their number.
        if len({(group.rate, group.decay) for group in groups}) == 1:  # kernels and others alike
            groups = [replace(groups[0], names=tuple(storage.parameters))]
        if not finish.fuses("updates"):
            groups = [replace(group, names=(name,)) for group in groups for name in group.names]
        for group in groups:
            offset, nbytes = storage.span(group)
            rule, control = self._rule(optimizer, group)
            w, g = (storage.stretch(role, offset, nbytes) for role in (Role.PARAMETER, Role.GRADIENT))
            slots = [storage.stretch(Role.OPTIMIZER, start + offset, nbytes) for start in starts]
            finish.pieces = self._pieces(offset, nbytes)
            rule.emit_update(finish, w, g, slots, control, group.decay > 0)

    def _rule(self, optimizer: Optimizer, group: ParameterGroup) -> tuple[Optimizer, Control]:
        """The optimizer with a group's weight decay, and the numbers that the host sends for the group."""
        rule = replace(optimizer, weight_decay=group.decay) if group.decay else optimizer
        return rule, replace(self.storage.control, scalars=self.storage.scalars_of(group))

    def _pieces(self, offset: int, nbytes: int) -> Pieces | None:
        """The parameters in `nbytes` bytes from `offset`, in pieces of kernels whose extremes the update leaves, and of
        all between them; None if there is no such kernel."""
        storage, extremes, unit = self.storage, self.held.extremes, 4 * BLOCK
        found, rows, done = [], [], 0

        def skip(stop: int) -> None:
            rows.extend((start, min(start + WEIGHT_ROWS, stop), -1) for start in range(done, stop, WEIGHT_ROWS))

        for w in storage.parameters.values():
            first, measured = (storage.offsets[w.buffer] - offset) // unit, extremes.get(w.buffer)
            if measured is None or not 0 <= first < nbytes // unit:
                continue
            found.append(measured)
            skip(first)
            target = storage.offsets[measured.buffer] // unit
            for block in range(w.blocks):
                for start in range(0, w.rows, WEIGHT_ROWS):
                    at = first + block * w.rows
                    rows.append((at + start, at + min(start + WEIGHT_ROWS, w.rows), target))
                    target += 2
            done = first + w.blocks * w.rows
        if not found:
            return None
        skip(nbytes // unit)
        return Pieces(len(rows), self.finish.table(tuple(rows)), tuple(found))


def norm(stage: Stage) -> tuple[Node, BatchNormalization]:
    """The stage's BatchNorm."""
    assert stage.norm is not None and isinstance(stage.norm.op, BatchNormalization)
    return stage.norm, stage.norm.op


def _passes(stage: Stage) -> bool:
    """True if a stage is a sum, and may pass its gradient on."""
    return stage.op is not None and stage.op.op.passes_gradient


TEMPORARIES = (Store, Recompute, Invert, Mask)  # strategies that add nothing to a plan's storage


def lay_out(request: Request, device: Device, traits: Traits) -> Plan:
    """Lower all programs of `request` and place every buffer, whatever the budget. Raises PlanError for an impossible
    request."""
    return Layout(request, device, traits).plan


class Layout:
    """The plan of a request, whatever the budget, and plans with other strategies for activations.

    Arguments:
    - `request`: what to plan.
    - `device`: where it will run.
    - `traits`: what the choice of kernels depends on.

    Raises PlanError for an impossible request.
    """

    def __init__(self, request: Request, device: Device, traits: Traits) -> None:
        request.check()
        request = request.with_memory(request.strategies)
        _check_units(request, device, traits)
        self.device, self.traits, self._storage = device, traits, Storage(request, device.alignment, traits.bare)
        self._lowered = {key: Lowering(request, self._storage, traits, key) for key in program_keys(request)}
        if traits.bare:
            launches = (launch for lowering in self._lowered.values() for launch in lowering.program.all_launches)
            self._storage.drop_constants({buffer for launch in launches for buffer in launch.reads})
        self.plan = self._placed(request, {key: lowering.program for key, lowering in self._lowered.items()})

    def with_memory(self, activation_memory: ActivationMemory) -> Plan:
        """The plan with these strategies, from the passes that are lowered already where the strategies hold only
        temporaries. Raises PlanError for tensors that can't be restored as they say."""
        request = self.plan.request.with_memory(activation_memory)
        if not all(type(strategy) in TEMPORARIES for strategy in activation_memory.values()):
            return lay_out(request, self.device, self.traits)
        request.check()
        return self._placed(
            request, {key: lowering.with_memory(activation_memory) for key, lowering in self._lowered.items()}
        )

    def _placed(self, request: Request, programs: Mapping[ProgramKey, Program]) -> Plan:
        alignment, storage, offsets = self.device.alignment, self._storage, dict[Buffer, int]()
        inputs = [x.buffer for x in storage.inputs.values() if x.buffer.role is Role.TEMPORARY]
        sizes = [_place(program, alignment, offsets, inputs) for program in programs.values()]
        arena_bytes, paged_bytes = map(max, zip(*sizes, strict=True))
        offsets |= storage.offsets
        return Plan(request, self.traits, alignment, storage, programs, offsets, arena_bytes, paged_bytes)


def _check_units(request: Request, device: Device, traits: Traits) -> None:
    """Raises PlanError if the request's products need matrix units that the device lacks."""
    kind = request.compute.type
    if request.compute.uses_units and not traits.unit(kind):
        raise PlanError(
            f"compute='{kind}' needs matrix units, and {device.id} was found to have none for it (edgelearn devices). "
            f"Leave it at 'fp32', or compute it by plain code, slowly: compute=Compute('{kind}', plain=True)."
        )


def program_keys(request: Request) -> list[ProgramKey]:
    """Every program that a session of this request may run.

    A mini-batch has a first micro-batch, following ones and a shorter last one, each in every mode of range
    collection. Evaluation and prediction run full micro-batches and the request's `remainders`; without an optimizer,
    also the micro-batches of its mini-batches.
    """
    batches = [request.micro_batches(examples) for examples in (request.batch_size, *request.last_batches)]
    forward = [request.micro_batch, *request.remainders]
    keys: list[ProgramKey] = []
    if request.optimizer:
        for ranges in request.range_modes(training=True):
            keys += [ProgramKey(Kind.TRAIN, n, ranges, first=i == 0) for sizes in batches for i, n in enumerate(sizes)]
    else:
        forward += [n for sizes in batches for n in sizes]
    for ranges in request.range_modes(training=False):
        for n in dict.fromkeys(forward):
            if request.losses.by_output and (n == request.micro_batch or request.losses.fits(n)):
                keys.append(ProgramKey(Kind.EVALUATE, n, ranges))
            keys.append(ProgramKey(Kind.PREDICT, n, ranges))
    return list(dict.fromkeys(keys))


def _place(program: Program, alignment: int, offsets: dict[Buffer, int], inputs: Sequence[Buffer]) -> tuple[int, int]:
    """Add the offsets of a program's temporaries and pages to `offsets`; return the bytes of arena and pages. `inputs`
    are those among the temporaries: they come first in the arena, and are there before the first launch."""
    size = 0
    for part, keep in (
        (program.prepare, []),
        (program.micro, [y.buffer for y in (*program.outputs.values(), *program.input_gradients.values())]),
        (program.finish, []),
    ):
        placed, nbytes = place(lifetimes(part, keep), alignment, inputs)
        offsets |= placed
        size = max(size, nbytes)
    pages, paged = place(lifetimes(program.micro, role=Role.PAGED), alignment)
    offsets |= pages
    return size, paged
