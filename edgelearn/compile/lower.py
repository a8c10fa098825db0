"""Lowering: from a network to the launches of its programs, and all programs to a plan.

A program has three lists: `prepare`, once a mini-batch (tensors derived from parameters: folded statistics, transposed
kernels); `micro`, for each micro-batch (forward and backward pass, gradients summed); `finish`, once a mini-batch
(gradients completed and checked, weights updated). The backward pass stops at the lowest trained layer: below it
nothing is stored, computed or allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph.fuse import Stage
from edgelearn.graph.network import Network, Node
from edgelearn.graph.rewrites import ancestors
from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    Add,
    Conv2D,
    Dense,
    Epilogue,
    Loss,
    Optimizer,
    Target,
    Traits,
    batchnorm,
    emit,
    finish,
    quantize,
    quantized_convolution,
)
from edgelearn.ops.emit import Answers, Pieces, Sum
from edgelearn.ops.finish import emit_finite_check, emit_unscaled
from edgelearn.ops.formats import QuantizedTensor, Stored, emit_prepared, is_integers, tensor_of
from edgelearn.ops.losses import emit_count
from edgelearn.ops.optimizers import AVERAGE, REFERENCE, Clipping, emit_average, emit_commit, emit_proximal
from edgelearn.ops.quantize import WEIGHT_ROWS, Residual
from edgelearn.ops.quantized import activation_of, family
from edgelearn.ops.target import emit_copy, emit_padded
from edgelearn.ops.tensor import BLOCK, LINEAR, Tensor, pack

from . import storage
from .lowering import Lowering, input_blocks, linear, norm, stored_as, targets_as
from .memory import ActivationMemory, Invert, Mask, Recompute, Store
from .plan import Kind, Plan, Program, ProgramKey
from .rematerialisation import Rematerialisation
from .request import Request
from .storage import Storage


def stages_behind(lowering: Lowering, stage: Stage, x: QuantizedTensor) -> list[Stage]:
    """The stages that the kernel of `stage`, which multiplies the integers `x`, can compute too: the next one if it
    adds another stored tensor, and the one behind that if it is an activation. Nothing else reads what is between."""
    if lowering.trains or family(linear(stage)) is not quantized_convolution:
        return []
    after = lowering.stages.index(stage) + 1
    if not quantized_convolution.adds_residuals(lowering.micro, x) or not _adds(lowering, stage, after):
        return []
    return lowering.stages[after : after + 1 + _activates(lowering, after + 1)]


def residual_of(lowering: Lowering, stage: Stage, behind: list[Stage]) -> Residual:
    """The sum that the kernel of `stage` computes for the stages `behind` it. Their ranges come into use."""
    (other,) = (name for name in behind[0].inputs if name != stage.output.name)
    summand = lowering.values[other]
    assert isinstance(summand, QuantizedTensor)
    own = lowering.quantizers.known_range("activations", stage.output.name)
    if len(behind) == 1:
        return Residual(own, summand)
    shape = summand.shape
    activation = behind[1].op and activation_of(behind[1].op.op, [shape])
    assert activation
    return Residual(own, summand, lowering.quantizers.known_range("activations", behind[0].output.name), activation)


def _adds(lowering: Lowering, stage: Stage, after: int) -> bool:
    """True if stage number `after` adds the integers of another tensor to the output of `stage`, which it alone
    reads."""
    following = lowering.stages[after] if after < len(lowering.stages) else None
    if following is None or following.op is None or not isinstance(following.op.op, Add):
        return False
    others = [name for name in following.inputs if name != stage.output.name]
    if len(following.inputs) != 2 or len(others) != 1 or not _passes(lowering, stage):
        return False
    other = lowering.values.get(others[0])
    same = isinstance(other, QuantizedTensor) and is_integers(other) and other.shape[1:] == stage.output.shape
    return same and _is_known(lowering, following)


def _activates(lowering: Lowering, after: int) -> bool:
    """True if stage number `after` is an activation that alone reads the stage before it."""
    following = lowering.stages[after] if after < len(lowering.stages) else None
    before = lowering.stages[after - 1]
    if following is None or following.op is None or following.inputs != (before.output.name,):
        return False
    is_activation = activation_of(following.op.op, [before.output.shape]) is not None
    return is_activation and _passes(lowering, before) and _is_known(lowering, following)


def _passes(lowering: Lowering, stage: Stage) -> bool:
    """True if one layer alone reads the output of `stage`, whose range is known."""
    return len(lowering.network.consumers(stage.output.name)) == 1 and _is_known(lowering, stage)


def _is_known(lowering: Lowering, stage: Stage) -> bool:
    """True if the output of `stage` is stored as integers by a range that is known before it is computed."""
    plain = {*lowering.network.outputs, *lowering.logits.values()}
    name = stage.output.name
    return name not in plain and lowering.quantizers.knows_range("activations", name)


class ForwardPass:
    """Emits stages in order, and leaves their outputs in `lowering.values`."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering, self.micro, self.quantizers = lowering, lowering.micro, lowering.quantizers
        self._computed: set[str] = set()  # stages that the kernel of an earlier one has computed

    def quantize_inputs(self) -> None:
        """Round the network's inputs: each to integers if all its readers multiply them."""
        lowering = self.lowering
        for name, x in lowering.inputs.items():
            lowering.at(name)
            readers = [stage for stage in lowering.stages if name in stage.inputs]
            integers = all(map(lowering.may_multiply_integers, readers))
            units = self.micro.traits.matrix_unit and self.quantizers.stores("activations", name)
            value = self.quantizers.input(name, x, integers)
            if integers and units and isinstance(value, QuantizedTensor) and x.block < BLOCK:
                value = quantize.emit_padded_integers(self.micro, value)
            lowering.values[name] = self._input(value)

    def _input(self, x: Stored) -> Stored:
        """An input as matrix units and halves need it: in blocks of 16 channels."""
        compute = self.lowering.request.compute
        if not isinstance(x, Tensor) or not (compute.stores_halves or (compute.uses_units and x.block < BLOCK)):
            return x
        return self._padded(x)

    def _padded(self, x: Tensor) -> Tensor:
        y = self.micro.tensor("padded", x.shape, dtype=self.lowering.request.compute.stored)
        emit_padded(self.micro, x, y)
        return y

    def emit(self, stage: Stage, quantized: bool) -> None:
        """Emit a stage, and round its output if `quantized`."""
        lowering = self.lowering
        if stage.name in self._computed:
            return
        lowering.at(stage.name)
        inputs = [lowering.values[name] for name in stage.inputs]
        x = inputs[0]
        if isinstance(x, QuantizedTensor) and is_integers(x) and lowering.may_multiply_integers(stage):
            lowering.integer.add(stage.name)
            if behind := stages_behind(lowering, stage, x):
                lowering.values[behind[-1].output.name] = self._sum(stage, x, behind)
                self._computed |= {each.name for each in behind}
            else:
                lowering.values[stage.output.name] = self._integers(stage, x, quantized)
            return
        if quantized and (y := self._of_integers(stage, inputs)):
            lowering.values[stage.output.name] = y
            return
        with stored_as(self.micro, inputs, lowering.stored(stage)) as own:
            if lowering.uses_batch(stage):
                y = self._before_norm(stage, own[0]) if stage.is_linear else own[0]
                lowering.values[stage.output.name] = self._normalize(stage, y, quantized)
                return
            out = self._output(stage)
            if stage.is_linear:
                self._linear(stage, own[0], out)
            elif stage.op is None:
                batchnorm.emit_normalize(self.micro, own[0], self._statistics(stage), Target(out), stage.activation)
            elif isinstance(stage.op.op, Add) and stage.activation != LINEAR:
                stage.op.op.emit_activated(self.micro, own[0], own[1], out, stage.activation)
            else:
                stage.op.op.emit_forward(self.micro, [*own, *lowering.weights(stage.op).values()], out)
        lowering.values[stage.output.name] = self._finished(stage, out, quantized)

    def _of_integers(self, stage: Stage, inputs: list[Stored]) -> Stored | None:
        """The output, in integers, of a sum or an activation of integers or of a selection among them; None for other
        stages."""
        integers = [x for x in inputs if isinstance(x, QuantizedTensor) and is_integers(x)]
        name = stage.output.name
        if stage.op is None or len(integers) < len(inputs):
            return None
        if stage.op.op.selects_integers:
            (x,) = integers
            shape = (self.lowering.n, *stage.output.shape)
            y = replace(x, tensor=self.micro.tensor("encoded activations", shape, dtype="int8"))
            stage.op.op.emit_forward(self.micro, [x.tensor], y.tensor)
            return y
        if not self.quantizers.stores("activations", name):
            return None
        activation = activation_of(stage.op.op, [x.shape for x in integers])
        if activation is None:
            return None

        def emit(target: Target) -> None:
            quantize.emit_integer_sum(self.micro, integers, target, activation)

        return self.quantizers.write("activations", name, integers[0].shape, emit)

    def _output(self, stage: Stage) -> Tensor:
        return self.micro.tensor("output", (self.lowering.n, *stage.output.shape), dtype=self.lowering.stored(stage))

    def _finished(self, stage: Stage, out: Tensor, quantized: bool) -> Stored:
        """A stage's output as the rest of the network reads it: rounded, or in float32 if not `quantized`."""
        dtype = self.lowering.request.compute.stored if quantized else "float32"
        if out.dtype != dtype:
            y = self.micro.tensor(f"output in {dtype}", out.shape, dtype=dtype)
            emit_padded(self.micro, out, y)
            return y
        return self._rounded(stage, out) if quantized else out

    def _rounded(self, stage: Stage, out: Tensor) -> Stored:
        """A stage's output as the rest of the network reads it."""
        if stage.output.op.selects:
            return self.quantizers.selected([self.lowering.values[name] for name in stage.inputs], out)
        return self.quantizers.activation(stage.output.name, out)

    # -- linear ops --------------------------------------------------------------------------------------------------

    def _linear(self, stage: Stage, x: Tensor, out: Tensor) -> None:
        """A linear op on floats, with stored statistics if a BatchNorm follows."""
        frozen = stage.name not in self.lowering.trained and not self.quantizers.rounds("weights", stage.name)
        frozen, prepare = frozen and not self.lowering.request.compute.stores_halves, self.lowering.prepare
        if frozen and stage.norm is not None:
            kernel, bias = self._folded(stage)
            kernel = emit_prepared(prepare, linear(stage).forward_view(prepare, x, kernel))
            linear(stage).emit_linear(self.micro, x, kernel, out, Epilogue(None, bias, stage.activation))
            return
        with stored_as(self.micro, [self._kernel(stage, x)], x.dtype) as (kernel,):
            linear(stage).emit_linear(self.micro, x, kernel, out, self._epilogue(stage))

    def _kernel(self, stage: Stage, x: Tensor) -> Stored:
        """The kernel as the stage's linear op reads it, given `x`."""
        lowering = self.lowering
        return lowering.kernel(stage, linear(stage).forward_view(lowering.prepare, x, lowering.master_kernel(stage)))

    def _before_norm(self, stage: Stage, x: Tensor) -> Stored:
        """A linear op on floats, whose output batch statistics normalize."""
        y = self.micro.tensor("before BatchNorm", (self.lowering.n, *stage.nodes[0].shape), dtype=x.dtype)
        epilogue = Epilogue(None, self.lowering.bias(stage))
        with stored_as(self.micro, [self._kernel(stage, x)], x.dtype) as (kernel,):
            linear(stage).emit_linear(self.micro, x, kernel, y, epilogue)
        return self.quantizers.norm_input(stage.name, y)

    def _integers(self, stage: Stage, x: QuantizedTensor, quantized: bool) -> Stored:
        """The output of a stage whose linear op multiplies integers."""
        op, name, kernel = linear(stage), stage.output.name, self.lowering.kernel(stage)

        def emit(target: Target, epilogue: Epilogue) -> None:
            family(op).emit_forward(self.micro, op, x, kernel, target, epilogue)

        if self.lowering.uses_batch(stage):
            return self._normalize(stage, self._integers_before_norm(stage, emit), quantized)
        epilogue = self._epilogue(stage)
        if quantized and self.quantizers.stores("activations", name):
            shape = (self.lowering.n, *stage.output.shape)
            return self.quantizers.write("activations", name, shape, lambda target: emit(target, epilogue))
        out = self._output(stage)
        emit(Target(out), epilogue)
        return self._rounded(stage, out) if quantized else out

    def _sum(self, stage: Stage, x: QuantizedTensor, behind: list[Stage]) -> Stored:
        """The output of the stages `behind` a stage that multiplies integers, all computed by its kernel."""
        op, kernel, epilogue = linear(stage), self.lowering.kernel(stage), self._epilogue(stage)
        assert isinstance(op, Conv2D | Dense) and isinstance(kernel, QuantizedTensor)
        added, output = residual_of(self.lowering, stage, behind), behind[-1].output

        def emit(target: Target) -> None:
            quantized_convolution.emit_forward(self.micro, op, x, kernel, target, epilogue, added)

        return self.quantizers.write("activations", output.name, (self.lowering.n, *output.shape), emit)

    def _integers_before_norm(self, stage: Stage, emit: Callable[..., None]) -> Stored:
        shape, epilogue = (self.lowering.n, *stage.nodes[0].shape), Epilogue(None, self.lowering.bias(stage))
        if self.quantizers.stores("norm_inputs", stage.name):
            return self.quantizers.write("norm_inputs", stage.name, shape, lambda target: emit(target, epilogue))
        y = self.micro.tensor("before BatchNorm", shape)
        emit(Target(y), epilogue)
        return self.quantizers.norm_input(stage.name, y)

    def _epilogue(self, stage: Stage) -> Epilogue:
        """Bias or stored statistics, and the activation."""
        if stage.norm is None:
            return Epilogue(None, self.lowering.bias(stage), stage.activation)
        s = self._statistics(stage)
        return Epilogue(s.scale, s.shift, stage.activation)

    def _folded(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """A frozen linear op and the frozen BatchNorm behind it as one kernel and one bias."""
        shape = self.lowering.network.parameters[f"{stage.name}/kernel"].weight.packed_shape
        constant = self.lowering.storage.constant
        fold = partial(_fold, self.lowering.network, stage)
        return (
            constant(f"{stage.name}/folded kernel", shape, lambda w: pack(fold(w)[0])),
            constant(f"{stage.name}/folded bias", shape[-1:], lambda w: pack(fold(w)[1])),
        )

    # -- BatchNorm ---------------------------------------------------------------------------------------------------

    def _statistics(self, stage: Stage) -> batchnorm.Statistics:
        """The stored statistics of the stage's BatchNorm, with the linear op's bias."""
        node, op = norm(stage)
        bias = self.lowering.bias(stage) if stage.is_linear else None
        s = batchnorm.emit_kept_statistics(self.lowering.prepare, op, self.lowering.weights(node), bias)
        self.lowering.statistics[stage.name] = s
        return s

    def _normalize(self, stage: Stage, y: Stored, quantized: bool) -> Stored:
        """The output of a stage whose BatchNorm normalizes `y` with the micro-batch's statistics."""
        (node, op), name = norm(stage), stage.output.name
        storage, statistics = self.lowering.storage, self.lowering.statistics
        moving = {role: storage.moving(f"{node.name}/{role}") for role in ("moving_mean", "moving_variance")}
        weights = self.lowering.weights(node) | moving
        self.lowering.before_norm[stage.name] = y

        def emit(target: Target) -> None:
            activation = stage.activation
            if stage.name in statistics:  # a replay
                batchnorm.emit_normalize(self.micro, y, statistics[stage.name], target, activation)
            else:
                statistics[stage.name] = batchnorm.emit_batch(self.micro, op, y, weights, target, activation)

        if quantized and self.quantizers.quantizes("activations", name):
            shape, integers = (self.lowering.n, *stage.output.shape), self.quantizers.stores("activations", name)
            return self.quantizers.write("activations", name, shape, emit, integers)
        out = self._output(stage)
        emit(Target(out))
        return self._finished(stage, out, quantized)


def _fold(network: Network, stage: Stage, weights: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A kernel and a bias, in float64, that do what a linear op and its BatchNorm do."""
    node, op = norm(stage)
    w = {role: weights[f"{node.name}/{role}"].astype(np.float64) for role in op.weights(node.shape)}
    scale = w["gamma"] / np.sqrt(w["moving_variance"] + op.epsilon)
    kernel = weights[f"{stage.name}/kernel"].astype(np.float64)
    kernel = kernel.reshape(network.parameters[f"{stage.name}/kernel"].weight.packed_shape)
    bias = weights.get(f"{stage.name}/bias", np.float64(0.0))
    return kernel * scale, w["beta"] + (bias - w["moving_mean"]) * scale


def emit_parameter_gradients(
    lowering: Lowering, stage: Stage, x: Stored, dy: Stored, statistics: batchnorm.Statistics | None
) -> None:
    """Emit the gradients of a stage's kernel and bias from its input and output gradient.

    With stored `statistics`, `dy` is the gradient behind scale and shift: those of kernel, bias, gamma and beta follow
    from the sums of its products (see kernels/finish.cl).
    """
    dkernel, dbias = (lowering.gradient(stage.name, role) for role in ("kernel", "bias"))
    if statistics is None:
        for part in filter(None, _emit_sums(lowering, stage, x, dy, dkernel, dbias)[::-1]):
            finish.emit_sum(lowering.finish, part)
        return
    dgamma, dbeta = (lowering.gradient(norm(stage)[0].name, role) for role in ("gamma", "beta"))
    kernel_total, dy_total = dkernel, dbeta
    if dgamma and not dkernel:
        kernel_total = gradient_workspace(lowering, stage, "kernel gradient for gamma", lowering.master_kernel(stage))
    if (dgamma or dbias) and not dbeta:
        dy_total = gradient_workspace(lowering, stage, "sum of gradients", statistics.scale)
    kernel_sum, dy_sum = _emit_sums(lowering, stage, x, dy, kernel_total, dy_total)
    if dy_sum:
        finish.emit_sum(lowering.finish, dy_sum)
    if kernel_sum:
        kernel = lowering.kernel(stage) if dgamma else None
        products = finish.emit_kernel_sum(lowering.finish, kernel_sum, statistics, kernel)
        if dgamma and products and dy_total:
            finish.emit_gamma(lowering.finish, products, statistics, lowering.bias(stage), dy_total, dgamma)
    if dbias and dy_total:
        finish.emit_bias(lowering.finish, dy_total, statistics, dbias)


def gradient_workspace(lowering: Lowering, stage: Stage, name: str, like: Tensor) -> Tensor:
    """Memory for a gradient of no trained parameter, from which that of another one is computed."""
    return lowering.storage.tensor(f"{stage.name}/{name}", like.shape, Role.GRADIENT)


def _emit_sums(
    lowering: Lowering, stage: Stage, x: Stored, dy: Stored, kernel_total: Tensor | None, dy_total: Tensor | None
) -> tuple[Sum | None, Sum | None]:
    """Add the products of x and dy to `kernel_total`, and dy to `dy_total`, where these are given; the sums that are to
    be completed."""
    op, micro, add = linear(stage), lowering.micro, not lowering.first
    if isinstance(dy, QuantizedTensor):
        if kernel_total:
            return family(op).emit_backward_weights(micro, op, x, dy, kernel_total, dy_total, add)
        return None, quantize.emit_integer_channel_sums(micro, dy, dy_total, add) if dy_total else None
    if kernel_total:
        assert isinstance(x, Tensor)
        return op.emit_backward_weights(micro, x, dy, kernel_total, dy_total, add)
    return None, emit.emit_channel_sums(micro, dy, dy_total, add) if dy_total else None


class BackwardPass:
    """Emits the loss, then the trained stages in reverse order. `gradients`: of layers' outputs, by name. `unmasked`:
    names of those not yet multiplied by the derivative of an activation, which the last reader's share will be."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering, self.micro, self.quantizers = lowering, lowering.micro, lowering.quantizers
        self.gradients: dict[str, Stored] = {}
        self.unmasked: set[str] = set()
        nodes, logits = lowering.network.nodes, [lowering.logits[name] for name in lowering.losses.by_output]
        self._reached = ancestors(logits, lambda name: nodes[name].inputs if name in nodes else ())
        self._stages = {stage.output.name: stage for stage in lowering.stages}
        self._places = {node.name: place for place, stage in enumerate(lowering.stages) for node in stage.nodes}

    def emit_losses(self) -> list[Answers]:
        """Emit the loss of each output that has one and, in training, its gradient. Raises PlanError if none depends on
        a trained parameter, or a loss doesn't fit its output."""
        lowering = self.lowering
        answers = [self._loss(name, loss) for name, loss in lowering.losses.by_output.items()]
        if lowering.trains and not self.gradients:
            outputs = ", ".join(f"'{name}'" for name in lowering.losses.by_output)
            raise PlanError(
                f"Nothing to train: the output {outputs} depends on no trained parameter. Unfreeze a layer that leads "
                f"to it."
            )
        return answers

    def _loss(self, name: str, loss: Loss) -> Answers:
        """Emit the loss of output `name`, and the gradient of what it takes, through the activation if one is fused."""
        lowering = self.lowering
        source, control = lowering.logits[name], lowering.controls[name]
        logits = lowering.values[source]
        loss.check(logits.shape[1:], lowering.n)
        assert isinstance(logits, Tensor)
        target = self._target(source, logits) if lowering.trains else None
        lowering.at("loss")
        if target is None or not (target.mask or target.accumulate):
            return loss.emit(self.micro, logits, control, target.tensor if target else None)
        gradient = self.micro.tensor("logits' gradient", logits.shape)
        answers = loss.emit(self.micro, logits, control, gradient)
        emit_copy(self.micro, gradient, target)
        return answers

    def emit(self, stage: Stage) -> None:
        """Emit the gradients of a stage's inputs and weights, if it is trained and the loss depends on it."""
        lowering = self.lowering
        if stage.name not in lowering.trained or stage.output.name not in self.gradients:
            return
        if stage.op and stage.op.op.invertible:
            lowering.at(stage.name)
            lowering.rematerialiser.invert(stage.op)
        dz = self.gradients[stage.output.name]
        inputs = [lowering.values[name] for name in stage.inputs]
        if stage.name in lowering.integer:
            lowering.at(stage.name)
            self._integers(stage, inputs[0], dz)
            return
        assert isinstance(dz, Tensor)
        if self._through_integers(stage, dz) or self._through_selection(stage, dz):
            return
        dtype, passed = lowering.stored(stage), self._pass_on(stage, dz)
        with stored_as(self.micro, [*inputs, lowering.values[stage.output.name], dz], dtype) as (*own, y, dz):
            targets = [
                None if name in passed else self._target(name, value if isinstance(value, Tensor) else x, stage)
                for name, value, x in zip(stage.inputs, inputs, own, strict=True)
            ]
            lowering.at(stage.name)
            with targets_as(self.micro, targets, dtype) as targets:
                if stage.is_linear:
                    self._linear(stage, own[0], dz, targets[0])
                elif stage.op is None:
                    self._norm(stage, own[0], dz, targets[0], stored_statistics=not lowering.uses_batch(stage))
                else:
                    self._op(stage.op, own, y, dz, targets)

    def _target(self, name: str, value: Stored, reader: Stage | None = None) -> Target | None:
        """Where `reader`, or the loss, writes the gradient of layer `name`, whose output is `value`; None if nothing
        below is trained."""
        stage = self._below(name)
        if stage is None:
            return None
        accumulate = name in self.gradients
        if not accumulate:
            self.lowering.at(stage.name)
            shape, dtype = (
                (self.lowering.n, *stage.output.shape),
                value.dtype if isinstance(value, Tensor) else "float32",
            )
            self.gradients[name] = self.micro.tensor("output gradient", shape, dtype=dtype)
        masks_sum = name in self.unmasked and self._last_writer(name, reader) is None
        if masks_sum:
            self.unmasked.remove(name)
        mask = value if stage.activation != LINEAR and name not in self.unmasked else None
        return Target(self.gradients[name], mask, stage.activation, accumulate, masks_sum=masks_sum)

    def _last_writer(self, name: str, reader: Stage | None) -> Node | None:
        """The last of the layers before `reader` that will add their shares to the gradient of layer `name`: the first
        one of the network, whose backward pass runs in reverse. None if there is none."""
        place = self._places[reader.name] if reader else inf
        readers = (node for node in self.lowering.network.consumers(name) if node.name in self._reached)
        before = (node for node in readers if self._places[node.name] < place)
        return min(before, key=lambda node: self._places[node.name], default=None)

    def _pass_on(self, stage: Stage, dz: Tensor) -> list[str]:
        """Names of the inputs of a sum whose gradient is `dz` itself, without a copy: those that only read it, and one
        other, which may add to it or pass it on, if those are done with it by then."""
        if not (stage.op and stage.op.op.passes_gradient):
            return []
        consumers = self.lowering.network.consumers
        takers = [name for name in stage.inputs if stage.inputs.count(name) == 1 and self._takes(name, dz, stage)]
        passed = [name for name in takers if len(consumers(name)) == 1 and not self._passes(name)]
        read = [self._places[name] for name in passed]
        for name in takers:
            changes = [name, *(node.name for node in consumers(name) if node.name != stage.op.name)]
            if name not in passed and all(self._places[change] < place for change in changes for place in read):
                passed.append(name)
                break
        self.gradients |= dict.fromkeys(passed, dz)
        self.unmasked |= {name for name in passed if self._stages[name].activation != LINEAR}
        return passed

    def _passes(self, name: str) -> bool:
        """True if layer `name` is a sum, and may pass its gradient on."""
        op = self._stages[name].op
        return op is not None and op.op.passes_gradient

    def _takes(self, name: str, dz: Tensor, reader: Stage) -> bool:
        """True if `dz` can be the gradient of layer `name`, which has none yet, or what others add their shares to."""
        below, value = self._below(name), self.lowering.values[name]
        if below is None or name in self.gradients:
            return False
        if below.activation != LINEAR:
            last = self._last_writer(name, reader)
            if self.lowering.rounds or last is None or not last.op.masks_sums:
                return False
        dtype = value.dtype if isinstance(value, Tensor) else "float32"
        rounded = below.is_linear and self.quantizers.rounds("gradients", below.name)  # in place, unless to integers
        return (not rounded or below.name in self.lowering.integer) and (value.shape, dtype) == (dz.shape, dz.dtype)

    def _below(self, name: str) -> Stage | None:
        """The trained stage whose output is `name`."""
        stage = self._stages.get(name)
        return stage if self.lowering.trains and stage and stage.name in self.lowering.trained else None

    def _op(self, node: Node, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[Target | None]) -> None:
        """An op with launches of its own."""
        lowering = self.lowering
        weights = lowering.weights(node)
        totals = [lowering.gradient(node.name, role) for role in weights]
        targets = targets + [Target(t, accumulate=not lowering.first) if t else None for t in totals]
        if any(targets):
            parts = node.op.emit_backward(self.micro, [*inputs, *weights.values()], y, dy, targets) or ()
            sums = {part.total: part for part in parts}
            for total in filter(None, totals):
                finish.emit_sum(lowering.finish, sums.get(total, Sum(total)))

    def _through_integers(self, stage: Stage, dz: Tensor) -> bool:
        """Emit the gradient of an activation whose output is integers, unless that isn't what the stage is."""
        y, name = self.lowering.values[stage.output.name], stage.inputs[0]
        function = activation_of(stage.op.op, [y.shape]) if stage.op else None
        below = self._below(name)
        if not function or function == LINEAR or not isinstance(y, QuantizedTensor) or not is_integers(y):
            return False
        if below and below.activation != LINEAR:
            return False
        target = self._target(name, y)
        self.lowering.at(stage.name)
        if target:
            quantize.emit_to_floats(self.micro, dz, replace(target, mask=y, activation=function))
        return True

    def _through_selection(self, stage: Stage, dz: Tensor) -> bool:
        """Emit the gradient of an op that selected among integers, unless that isn't what the stage is."""
        values, name = self.lowering.values, stage.inputs[0]
        x, y = values[name], values[stage.output.name]
        if not (stage.op and stage.op.op.selects_integers and is_integers(x) and is_integers(y)):
            return False
        target = self._target(name, x, stage)
        self.lowering.at(stage.name)
        if target:
            stage.op.op.emit_backward(self.micro, [tensor_of(x)], tensor_of(y), dz, [target])
        return True

    def _norm(self, stage: Stage, y: Stored, dz: Tensor, target: Target | None, stored_statistics: bool) -> None:
        """The gradients of a BatchNorm's input `y` and of gamma and beta."""
        lowering, s, (node, _) = self.lowering, self.lowering.statistics[stage.name], norm(stage)
        dgamma, dbeta = (
            lowering.gradient(node.name, role)
            or gradient_workspace(lowering, stage, f"unused {role} gradient", s.scale)
            for role in ("gamma", "beta")
        )
        batchnorm.emit_backward(self.micro, y, dz, s, dgamma, dbeta, target, stored_statistics, not lowering.first)
        for gradient in (dgamma, dbeta):
            finish.emit_sum(lowering.finish, Sum(gradient))

    # -- linear ops --------------------------------------------------------------------------------------------------

    def _linear(self, stage: Stage, x: Tensor, dz: Tensor, target: Target | None) -> None:
        """A linear op that multiplies floats."""
        dy, statistics = self._before_norm(stage, dz)
        emit_parameter_gradients(self.lowering, stage, x, dy, statistics)
        if target is not None:
            assert isinstance(dy, Tensor)
            op, lowering, scale = linear(stage), self.lowering, statistics.scale if statistics else None
            view = op.backward_view(lowering.prepare, x, lowering.master_kernel(stage), scale)
            with stored_as(self.micro, [lowering.kernel(stage, view)], dy.dtype) as (kernel,):
                op.emit_backward_data(self.micro, x, kernel, dy, target)

    def _before_norm(
        self, stage: Stage, dz: Stored, integers: bool = False
    ) -> tuple[Stored, batchnorm.Statistics | None]:
        """(gradient of the linear op's output, rounded, as `integers` if asked for; None). With stored statistics
        instead (`dz` rounded, these): scale and shift are applied elsewhere."""
        layer = stage.name
        if not self.lowering.uses_batch(stage):
            dy = dz if isinstance(dz, QuantizedTensor) else self.quantizers.gradient(layer, dz, integers)
            return dy, self.lowering.statistics.get(layer)
        assert isinstance(dz, Tensor)

        def emit(target: Target) -> None:
            self._norm(stage, self.lowering.before_norm[layer], dz, target, stored_statistics=False)

        if self.quantizers.quantizes("gradients", layer):
            return self.quantizers.write("gradients", layer, dz.shape, emit, integers), None
        dy = self.micro.tensor("gradient before BatchNorm", dz.shape, dtype=dz.dtype)
        emit(Target(dy))
        return self.quantizers.gradient(layer, dy), None

    def _integers(self, stage: Stage, x: Stored, dz: Stored) -> None:
        """A linear op that multiplies integers."""
        assert isinstance(x, QuantizedTensor)
        op, lowering, name = linear(stage), self.lowering, stage.inputs[0]
        dy, statistics = self._before_norm(stage, dz, integers=True)
        emit_parameter_gradients(lowering, stage, x, dy, statistics)
        below = self._below(name)
        if below is None:
            return
        view = op.view(x.tensor, lowering.master_kernel(stage), statistics.scale if statistics else None)
        prepared = lowering.kernel(stage, view)

        def emit(target: Target) -> None:
            family(op).emit_backward_data(self.micro, op, x.tensor, prepared, dy, target)

        if self._multiplies_integers(below, name):
            mask = x if below.activation != LINEAR else None
            self.gradients[name] = self.quantizers.write(
                "gradients", below.name, x.tensor.shape,
                lambda target: emit(replace(target, mask=mask, activation=below.activation)),
            )  # fmt: skip
        elif target := self._target(name, x):
            lowering.at(stage.name)
            emit(target)

    def _multiplies_integers(self, below: Stage, name: str) -> bool:
        """True if stage `below` multiplies the gradient of its output `name` as integers, and one layer reads that."""
        lowering = self.lowering
        single = len(lowering.network.consumers(name)) == 1 and name not in self.gradients
        return below.name in lowering.integer and not lowering.uses_batch(below) and single


def emit_update(lowering: Lowering) -> None:
    """Emit the update into `finish`. Every launch of it does nothing if a gradient is NaN or infinite."""
    storage, finish, control, optimizer = (
        lowering.storage,
        lowering.finish,
        lowering.control,
        lowering.request.optimizer,
    )
    assert optimizer is not None
    lowering.quantizers.statistics.check(finish)
    lowering.at("optimizer")
    finish.emit_jobs()
    total = storage.sizes[Role.PARAMETER]
    whole = storage.stretch(Role.GRADIENT, 0, total)
    if lowering.request.compute.scales_loss:
        emit_unscaled(finish, whole, control)
    clipping = Clipping(optimizer, [g.buffer for g in storage.gradients.values()], whole, control)
    factors = clipping.emit_factors(finish)
    emit_finite_check(finish, storage.stretch(Role.CHECK, 0, storage.sizes[Role.CHECK]), control)
    lowering.quantizers.statistics.learn(finish)
    finish.emit_jobs()
    lowering.at("optimizer")
    if statistics := storage.sizes.get(Role.STATISTICS):
        lasting, moving = (storage.stretch(role, 0, statistics) for role in (Role.STATISTICS, Role.MOVING))
        emit_commit(lowering.prepare, lasting, moving, control)
        emit_commit(finish, moving, lasting, control)
    if optimizer.clips:
        clipping.emit(finish, factors)
    parameters, slots = storage.stretch(Role.PARAMETER, 0, total), {slot.name: slot for slot in storage.slots}
    if optimizer.proximal:
        emit_proximal(finish, optimizer, parameters, whole, slots[REFERENCE], control)
    _emit_rules(lowering, optimizer)
    if optimizer.use_ema:
        emit_average(finish, optimizer, parameters, slots[AVERAGE], control)


def _emit_rules(lowering: Lowering, optimizer: Optimizer) -> None:
    """Emit the optimizer's rule, for all parameters at once or tensor by tensor."""
    storage, finish, control = lowering.storage, lowering.finish, lowering.control
    if optimizer.per_tensor:
        for name, w in storage.parameters.items():
            slots = [storage.slot_tensors[f"{slot}/{name}"].buffer for slot in optimizer.slots]
            decay = lowering.network.parameters[name].weight.decays
            optimizer.emit_update(finish, w.buffer, storage.gradients[name].buffer, slots, control, decay)
        finish.emit_jobs()
        return
    starts = [storage.offsets[slot] for slot in storage.slots if slot.name in optimizer.slots]
    extremes = lowering.quantizers.kernels.extremes
    whole = [(0, storage.sizes[Role.PARAMETER], False)]
    for offset, nbytes, decay in storage.ranges if optimizer.weight_decay else whole:
        if nbytes:
            w, g = (storage.stretch(role, offset, nbytes) for role in (Role.PARAMETER, Role.GRADIENT))
            slots = [storage.stretch(Role.OPTIMIZER, start + offset, nbytes) for start in starts]
            finish.pieces = _pieces(lowering, offset, nbytes, extremes) if extremes else None
            optimizer.emit_update(finish, w, g, slots, control, decay)


def _pieces(lowering: Lowering, offset: int, nbytes: int, extremes: Mapping[Buffer, Tensor]) -> Pieces | None:
    """The parameters in `nbytes` bytes from `offset`, in pieces of kernels as `extremes` has them, and of all between
    them; None if there is no such kernel."""
    storage, unit = lowering.storage, 4 * BLOCK
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
    skip(nbytes // unit)
    return Pieces(len(rows), lowering.finish.table(tuple(rows)), tuple(found)) if found else None


def lower(request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> tuple[Program, Lowering]:
    """The program of `key`, and the lowering, whose rematerialiser knows the program as it is if everything is stored.
    Persistent tensors are added to `storage`. Raises PlanError for a network that can't be trained as the request
    says."""
    lowering = Lowering(request, storage, traits, key)
    network, logits, losses = lowering.network, lowering.logits, lowering.losses
    stages = lowering.stages
    plain = {*network.outputs, *logits.values()}
    forward = ForwardPass(lowering)
    forward.quantize_inputs()
    for stage in stages:
        forward.emit(stage, quantized=stage.output.name not in plain)
    remat, micro = lowering.rematerialiser, lowering.micro
    loss_at = len(micro.launches)
    rematerialisation = Rematerialisation(loss_at, loss_at, {}, {}, {})
    if losses.by_output:
        backward = BackwardPass(lowering)
        answers = backward.emit_losses()
        if lowering.trains:
            remat.start(lowering.tensors(), loss_at)
            for stage in reversed(stages):
                backward.emit(stage)
            rematerialisation = remat.finish()
            emit_update(lowering)
        lowering.at("loss")
        weights = [losses.weight(name) for name in losses.by_output] if len(answers) > 1 else []
        emit_count(micro, answers, lowering.control, lowering.n, weights)
    lowering.measure.emit_jobs()
    lowering.prepare.emit_jobs()
    outputs = {name: lowering.values[logits[name] if name in losses.by_output else name] for name in network.outputs}
    floats = {name: y for name, y in outputs.items() if isinstance(y, Tensor)}
    assert floats.keys() == outputs.keys()
    program = Program(
        lowering.prepare.launches, micro.launches, lowering.finish.launches, lowering.inputs, floats, rematerialisation,
        lowering.measure.launches,
    )  # fmt: skip
    return program, lowering


def with_memory(program: Program, lowering: Lowering, activation_memory: ActivationMemory) -> Program:
    """The same program with other strategies for activations, which hold temporaries alone. Raises PlanError for
    tensors that can't be restored as they say."""
    if not lowering.trains:
        return program
    remat = lowering.rematerialiser
    launches, rematerialisation = remat.rewritten(activation_memory)
    return replace(program, micro=launches + lowering.micro.launches[remat.end :], rematerialisation=rematerialisation)


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
        self.device, self.traits, self._storage = device, traits, make_storage(request, device)
        self._lowered = {key: lower(request, self._storage, traits, key) for key in program_keys(request)}
        self.plan = self._placed(request, {key: program for key, (program, _) in self._lowered.items()})

    def with_memory(self, activation_memory: ActivationMemory) -> Plan:
        """The plan with these strategies, from the passes that are lowered already where the strategies hold only
        temporaries. Raises PlanError for tensors that can't be restored as they say."""
        request = self.plan.request.with_memory(activation_memory)
        if not all(type(strategy) in TEMPORARIES for strategy in activation_memory.values()):
            return lay_out(request, self.device, self.traits)
        request.check()
        return self._placed(
            request, {key: with_memory(*lowered, activation_memory) for key, lowered in self._lowered.items()}
        )

    def _placed(self, request: Request, programs: Mapping[ProgramKey, Program]) -> Plan:
        alignment, storage, offsets = self.device.alignment, self._storage, dict[Buffer, int]()
        sizes = [_place(program, alignment, offsets) for program in programs.values()]
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


def make_storage(request: Request, device: Device) -> Storage:
    """Create the storage of `request`; lowering its programs adds to it."""
    network = request.network
    trained = [name for name in network.parameters if name in request.trainable] if request.optimizer else []
    blocks = input_blocks(network)
    return Storage(
        network, trained, request.optimizer, device.alignment, request.micro_batch, blocks, request.losses,
        request.weighted,
    )  # fmt: skip


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
        for ranges in request.precision.modes(training=True):
            keys += [ProgramKey(Kind.TRAIN, n, ranges, first=i == 0) for sizes in batches for i, n in enumerate(sizes)]
    else:
        forward += [n for sizes in batches for n in sizes]
    for ranges in request.precision.modes(training=False):
        for n in dict.fromkeys(forward):
            if request.losses.by_output and (n == request.micro_batch or request.losses.fits(n)):
                keys.append(ProgramKey(Kind.EVALUATE, n, ranges))
            keys.append(ProgramKey(Kind.PREDICT, n, ranges))
    return list(dict.fromkeys(keys))


def _place(program: Program, alignment: int, offsets: dict[Buffer, int]) -> tuple[int, int]:
    """Add the offsets of a program's temporaries and pages to `offsets`; return the bytes of arena and pages."""
    size = 0
    for part, keep in (
        (program.prepare, []),
        (program.micro, [y.buffer for y in program.outputs.values()]),
        (program.finish, []),
    ):
        placed, nbytes = storage.place(storage.lifetimes(part, keep), alignment)
        offsets |= placed
        size = max(size, nbytes)
    pages, paged = storage.place(storage.lifetimes(program.micro, role=Role.PAGED), alignment)
    offsets |= pages
    return size, paged
