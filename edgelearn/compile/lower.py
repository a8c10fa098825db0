"""From a network to the launches of a step.

A program has three lists: `prepare`, once a mini-batch (what derives from parameters: folded statistics, transposed
kernels); `micro`, for each micro-batch (forward and backward, gradients summed); `finish`, once a mini-batch (gradients
completed, checked, weights updated). The backward pass stops at the lowest trained layer: below it nothing is saved,
computed or allocated, since no launch would read it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.graph.fuse import Stage, fuse, trained_stages
from edgelearn.graph.network import INPUT, Network, Node
from edgelearn.launch import Role
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    Epilogue,
    GradientTarget,
    Loss,
    Optimizer,
    Softmax,
    Traits,
    batchnorm,
    finish,
    reduce,
)
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.control import Answers
from edgelearn.ops.copy import emit_copy
from edgelearn.ops.finish import emit_finite_check
from edgelearn.ops.loss import emit_count
from edgelearn.ops.optimizers import emit_commit
from edgelearn.ops.quantize import RangeStatistics
from edgelearn.ops.quantized import family, supports
from edgelearn.ops.quantized_tensor import QuantizedTarget, QuantizedTensor, Result
from edgelearn.ops.stored import Stored
from edgelearn.ops.sums import Sum
from edgelearn.ops.tensor import Tensor, pack

from .memory.rematerialiser import Rematerialiser
from .precision.quantizers import Quantizers
from .program import Kind, Program, ProgramKey, StorageEmitter, as_floats
from .request import Request
from .storage import Storage


def input_block(network: Network) -> int:
    """The channel block of the network's input: unpadded where only plain convolutions read it."""
    channels = network.input_shape[-1]
    plain = all(isinstance(n.op, Conv2D) and n.op.groups == 1 for n in network.consumers(INPUT))
    return channels if channels < 16 and plain else 16


class Lowering:
    """Lowers the network of a request to the program of `key`."""

    def __init__(self, request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> None:
        self.request, self.network, self.storage = request, request.network, storage
        self.n, self.first, self.train = key.examples, key.first, key.kind is Kind.TRAIN
        self.loss = None if key.kind is Kind.PREDICT else request.loss
        network, n = self.network, self.n
        self.stages = fuse(network)
        self.in_backward = trained_stages(network, self.stages)  # what lies below is frozen: folded, in every program
        self.backward = self.in_backward if self.train else set()
        self.prepare, self.micro, self.finish = (StorageEmitter(traits, storage) for _ in range(3))
        self.x = Tensor(storage.input.buffer, (n, *network.input_shape), storage.input.block)
        self.control = storage.control
        self.micro.training = self.control if self.train else None
        self.quantizers = Quantizers(
            request.precision, storage, self.prepare, self.micro, key.ranges, self.train, self.first
        )
        self.values: dict[str, Stored] = {INPUT: self.x}
        self.before_norm: dict[str, Stored] = {}
        self.statistics: dict[str, batchnorm.Statistics] = {}
        self.gradients: dict[str, Tensor | QuantizedTensor] = {}
        self.fused_codes = {s.output.name: s.activation_code for s in self.stages}
        self.stage_of = {s.output.name: s for s in self.stages}
        self.integer: set[str] = set()  # names of stages that multiply integers
        self.rematerialiser = Rematerialiser(network, request.activation_memory, self.micro)

    def program(self) -> Program:
        stages, output, loss = self.stages, self.network.output, self.loss
        bare = isinstance(output.op, Softmax) and (loss is None or loss.takes_logits)
        logits = output.inputs[0] if bare else output.name
        name = output.name
        if loss and name != logits:
            stages = [stage for stage in stages if stage.output is not output]
            name = logits
        self._quantize_input()
        for stage in stages:
            self._forward(stage, stage.output.name not in (logits, output.name))
        y = self.values[name]
        turn = len(self.micro.launches)
        answers = self._loss(name, loss) if loss else None
        if self.train:
            self.rematerialiser.start(self._tensors(), turn)
            for stage in reversed(stages):
                if stage.name in self.backward:
                    self._backward(stage)
            self.rematerialiser.finish()
            assert self.request.optimizer is not None
            self._update(self.request.optimizer)
        if answers:
            self._at("loss")
            emit_count(self.micro, answers, self.control)
        self.prepare.emit_jobs()
        launches = self.prepare.launches, self.micro.launches, self.finish.launches
        return Program(*launches, self.x, y, self.rematerialiser)

    def _tensors(self) -> dict[str, Tensor | QuantizedTensor]:
        """What the forward pass has left, by layer. Those that run as one kernel share a tensor."""
        found = dict(self.values)
        for stage in self.stages:
            if stage.output.name in found:
                found |= {node.name: found[stage.output.name] for node in stage.nodes}
                if stage.op and stage.name in self.before_norm:
                    found[stage.op.name] = self.before_norm[stage.name]
        return found

    # -- forward -------------------------------------------------------------------------------------------------

    def _at(self, layer: str) -> None:
        self.prepare.layer = self.micro.layer = self.finish.layer = layer

    def _forward(self, stage: Stage, quantized: bool) -> None:
        """Compute a stage; `quantized` unless it ends in the network's output."""
        self._at(stage.name)
        inputs = [self.values[name] for name in stage.inputs]
        if stage.is_linear and self._multiplies_integers(stage, inputs[0]):
            self.integer.add(stage.name)
            self.values[stage.output.name] = self._forward_integers(stage, inputs[0], quantized)
            return
        with as_floats(self.micro, inputs) as floats:
            if self._uses_batch(stage.norm):
                self.values[stage.output.name] = self._forward_batch(stage, floats[0], quantized)
                return
            out = self.micro.tensor("output", (self.n, *stage.output.shape))
            if stage.is_linear:
                self._forward_linear(stage, floats[0], out)
            elif stage.op is None:
                batchnorm.emit_normalize(self.micro, floats[0], self._kept(stage), out, stage.activation_code)
            else:
                stage.op.op.emit_forward(self.micro, floats, out)
        self.values[stage.output.name] = self._quantized(stage, out) if quantized else out

    def _quantize_input(self) -> None:
        self._at(INPUT)
        consumers = [stage for stage in self.stages if INPUT in stage.inputs]
        self.values[INPUT] = self.quantizers.input(INPUT, self.x, all(map(self._may_multiply, consumers)))

    def _quantized(self, stage: Stage, out: Tensor) -> Stored:
        """What a stage has written, as the rest of the network reads it."""
        if stage.output.op.selects:
            return self.quantizers.chosen([self.values[name] for name in stage.inputs], out)
        return self.quantizers.activation(stage.output.name, out)

    def _may_multiply(self, stage: Stage) -> bool:
        """Whether integer kernels compute a stage if they get its input as integers."""
        layer = stage.op.name if stage.is_linear else ""
        kinds = ("weights", "gradients")
        return bool(layer) and supports(stage.op.op) and all(self.quantizers.stores(kind, layer) for kind in kinds)

    def _multiplies_integers(self, stage: Stage, x: Tensor | QuantizedTensor) -> bool:
        return isinstance(x, QuantizedTensor) and self._may_multiply(stage)

    def _forward_integers(self, stage: Stage, x: QuantizedTensor, quantized: bool) -> Tensor | QuantizedTensor:
        op, name, shape = stage.op.op, stage.output.name, (self.n, *stage.output.shape)
        kernel = self._kernel(stage)

        def emit(y: Tensor | QuantizedTensor, epilogue: Epilogue, found: RangeStatistics | None = None) -> None:
            family(op).emit_forward(self.micro, op, x, kernel, y, epilogue, found)

        if self._uses_batch(stage.norm):
            return self._normalize(stage, self._forward_to_norm(stage, emit), quantized)
        epilogue = self._epilogue(stage)
        if quantized and self.quantizers.stores("activations", name):
            return self.quantizers.write("activations", name, shape, lambda y, found: emit(y, epilogue, found))
        out = self.micro.tensor("output", shape)
        emit(out, epilogue)
        return self._quantized(stage, out) if quantized else out

    def _forward_to_norm(self, stage: Stage, emit: Callable[..., None]) -> Stored:
        """What batch statistics are to normalize."""
        shape, layer = (self.n, *stage.op.shape), stage.op.name
        epilogue = Epilogue(None, self._parameter(stage.op, "bias"))
        if self.quantizers.stores("norm_inputs", layer):
            return self.quantizers.write("norm_inputs", layer, shape, lambda y, found: emit(y, epilogue, found))
        y = self.micro.tensor("before BatchNorm", shape)
        emit(y, epilogue)
        return self.quantizers.norm_input(layer, y)

    def _epilogue(self, stage: Stage) -> Epilogue:
        """Without batch statistics."""
        if stage.norm is None:
            return Epilogue(None, self._parameter(stage.op, "bias"), stage.activation_code)
        s = self._kept(stage)
        return Epilogue(s.scale, s.shift, stage.activation_code)

    def _forward_linear(self, stage: Stage, x: Tensor, out: Tensor) -> None:
        op, code, folds = stage.op.op, stage.activation_code, stage.norm is not None
        if folds and stage.name not in self.in_backward and not self.quantizers.rounds("weights", stage.op.name):
            kernel, bias = self._folded(stage)
            op.emit_forward(self.micro, x, kernel, out, Epilogue(None, bias, code))
            return
        with as_floats(self.micro, [self._kernel(stage)]) as (kernel,):
            op.emit_forward(self.micro, x, kernel, out, self._epilogue(stage))

    def _forward_batch(self, stage: Stage, x: Tensor, quantized: bool) -> Stored:
        """With the micro-batch's statistics."""
        if not stage.is_linear:
            return self._normalize(stage, x, quantized)
        y, bias = self.micro.tensor("before BatchNorm", (self.n, *stage.op.shape)), self._parameter(stage.op, "bias")
        with as_floats(self.micro, [self._kernel(stage)]) as (kernel,):
            stage.op.op.emit_forward(self.micro, x, kernel, y, Epilogue(None, bias))
        return self._normalize(stage, self.quantizers.norm_input(stage.op.name, y), quantized)

    def _normalize(self, stage: Stage, y: Stored, quantized: bool) -> Stored:
        """The output of a stage whose BatchNorm normalizes `y` with the micro-batch's statistics."""
        name, shape = stage.output.name, (self.n, *stage.output.shape)
        moving = {role: self.storage.moving(f"{stage.norm.name}/{role}") for role in ("moving_mean", "moving_variance")}
        weights = self._norm_parameters(stage) | moving
        self.before_norm[stage.name] = y

        def emit(out: Tensor | Result) -> None:
            s = batchnorm.emit_batch(self.micro, stage.norm.op, y, weights, out, stage.activation_code)
            self.statistics[stage.name] = s

        def emit_result(out: Tensor | QuantizedTensor, found: RangeStatistics | None) -> None:
            if stage.name in self.statistics:  # this is what runs again
                s = self.statistics[stage.name]
                batchnorm.emit_normalize(self.micro, y, s, Result(out, found), stage.activation_code)
            else:
                emit(Result(out, found))

        if quantized and self.quantizers.quantizes("activations", name):
            integers = self.quantizers.stores("activations", name)
            return self.quantizers.write("activations", name, shape, emit_result, integers)
        out = self.micro.tensor("output", shape)
        emit(out)
        return self._quantized(stage, out) if quantized else out

    def _uses_batch(self, norm: Node | None) -> bool:
        """As in Keras, a BatchNorm layer that is frozen keeps its statistics also while others use the batch's."""
        if norm is None or not self.train or self.request.batchnorm != "batch":
            return False
        return not self.network.trainable.isdisjoint({f"{norm.name}/gamma", f"{norm.name}/beta"})

    def _kept(self, stage: Stage) -> batchnorm.Statistics:
        bias = self._parameter(stage.op, "bias") if stage.op else None
        s = batchnorm.emit_kept_statistics(self.prepare, stage.norm.op, self._norm_parameters(stage), bias)
        self.statistics[stage.name] = s
        return s

    def _parameter(self, node, role: str) -> Tensor | None:
        name = f"{node.name}/{role}"
        return self.storage.parameter(name) if name in self.network.parameters else None

    def _kernel(self, stage: Stage) -> Stored:
        """The stage's kernel as its passes read it; the update has `_parameter`."""
        layer, kernel = stage.op.name, self._parameter(stage.op, "kernel")
        if stage.name in self.integer:
            return self.quantizers.kernels.integers(layer, kernel)
        return self.quantizers.kernels.floats(layer, kernel)

    def _norm_parameters(self, stage: Stage) -> dict[str, Tensor]:
        roles = ("gamma", "beta", "moving_mean", "moving_variance")
        return {role: self.storage.parameter(f"{stage.norm.name}/{role}") for role in roles}

    def _folded(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """A frozen convolution with the frozen BatchNorm behind it as one kernel and one bias."""
        kernel = self.network.parameters[f"{stage.op.name}/kernel"].weight.packed_shape
        fold = partial(_fold, self.network, stage)
        return (
            self.storage.constant(f"{stage.name}/folded kernel", kernel, lambda w: pack(fold(w)[0])),
            self.storage.constant(f"{stage.name}/folded bias", kernel[-1:], lambda w: pack(fold(w)[1])),
        )

    # -- backward ------------------------------------------------------------------------------------------------

    def _loss(self, name: str, loss: Loss) -> Answers:
        """The loss of node `name`, and its gradient to the node: through the activation where one is fused."""
        logits = self.values[name]
        if len(logits.shape) != 2:
            raise PlanError(
                f"The loss needs (classes,) as the network's output, but '{self.network.output.name}' gives "
                f"{logits.shape[1:]}: end the network with a Dense layer."
            )
        loss.check(logits.channels, self.n)
        target = self._target(name, logits) if self.train else None
        if self.train and target is None:
            raise PlanError(
                f"Nothing to train: the output '{self.network.output.name}' depends on no trained parameter. "
                f"Unfreeze a layer that leads to it."
            )
        self._at("loss")
        gradient = target.tensor if target else None
        if target and target.mask:
            gradient = self.micro.tensor("logits' gradient", logits.shape)
        answers = loss.emit(self.micro, logits, self.control, gradient)
        if target and target.mask:
            emit_copy(self.micro, gradient, target)
        return answers

    def _target(self, name: str, value: Tensor | QuantizedTensor) -> GradientTarget | None:
        """Where the gradient of node `name` goes, which holds `value`, or None where nothing below needs it."""
        stage = self.stage_of.get(name)
        if stage is None or stage.name not in self.backward:
            return None
        code = self.fused_codes[name]
        accumulate = name in self.gradients
        if not accumulate:
            self._at(stage.name)
            self.gradients[name] = self.micro.tensor("output gradient", (self.n, *stage.output.shape))
        return GradientTarget(self.gradients[name], value if code else None, code, accumulate)

    def _backward(self, stage: Stage) -> None:
        if stage.output.name not in self.gradients:
            return  # nothing that reaches the loss reads it
        if stage.op and stage.op.op.invertible:
            self._at(stage.name)
            self.rematerialiser.invert(stage.op)
        dz = self.gradients[stage.output.name]
        inputs = [self.values[name] for name in stage.inputs]
        if stage.name in self.integer:
            self._at(stage.name)
            self._backward_integers(stage, inputs[0], dz)
            return
        with as_floats(self.micro, [*inputs, self.values[stage.output.name]]) as (*floats, y):
            targets = [self._target(name, x) for name, x in zip(stage.inputs, floats, strict=True)]
            self._at(stage.name)
            if stage.is_linear:
                self._backward_linear(stage, floats[0], dz, targets[0])
            elif stage.op is None:
                self._backward_norm(stage, floats[0], dz, targets[0], not self._uses_batch(stage.norm))
            elif any(targets):
                stage.op.op.emit_backward(self.micro, floats, y, dz, targets)

    def _backward_norm(
        self, stage: Stage, y: Stored, dz: Tensor, target: GradientTarget | Result | None, kept: bool
    ) -> None:
        s = self.statistics[stage.name]
        dgamma, dbeta = (
            self._gradient(stage.norm.name, role) or self._place(stage, f"unused {role} gradient", s.scale)
            for role in ("gamma", "beta")
        )
        batchnorm.emit_backward(self.micro, y, dz, s, dgamma, dbeta, target, kept, not self.first)
        for gradient in (dgamma, dbeta):
            finish.emit_sum(self.finish, Sum(gradient))

    def _backward_linear(self, stage: Stage, x: Tensor, dz: Tensor, target: GradientTarget | None) -> None:
        op = stage.op.op
        dz, kept = self._before_norm(stage, dz)
        self._backward_parameters(stage, x, dz, kept)
        if target is not None:
            with as_floats(self.micro, [self._prepared(stage, x, kept.scale if kept else None)]) as (prepared,):
                op.emit_backward_data(self.micro, x, prepared, dz, target)

    def _prepared(self, stage: Stage, x: Tensor, scale: Tensor | None) -> Tensor:
        """The kernel as the pass to data reads it."""
        op, layer, kernels = stage.op.op, stage.op.name, self.quantizers.kernels
        if kernels.stores_halves(layer):
            return kernels.viewed_halves(layer, op.view(x, self._parameter(stage.op, "kernel"), scale))
        return op.emit_prepared(self.prepare, x, self._kernel(stage), scale)

    def _before_norm(
        self, stage: Stage, dz: Tensor | QuantizedTensor, integers: bool = False
    ) -> tuple[Tensor | QuantizedTensor, batchnorm.Statistics | None]:
        """The gradient of what the stage's BatchNorm normalizes, or, behind kept statistics, `dz` and these; quantized,
        as `integers` where these are wanted."""
        layer = stage.op.name
        if not self._uses_batch(stage.norm):
            done = dz if isinstance(dz, QuantizedTensor) else self.quantizers.gradient(layer, dz, integers)
            return done, self.statistics.get(stage.name)

        def emit(target: GradientTarget | Result) -> None:
            self._backward_norm(stage, self.before_norm[stage.name], dz, target, kept=False)

        if self.quantizers.quantizes("gradients", layer):
            shape = dz.shape
            dy = self.quantizers.write("gradients", layer, shape, lambda y, found: emit(Result(y, found)), integers)
            return dy, None
        dy = self.micro.tensor("gradient before BatchNorm", dz.shape)
        emit(GradientTarget(dy))
        return self.quantizers.gradient(layer, dy), None

    def _backward_integers(self, stage: Stage, x: QuantizedTensor, dz: Tensor | QuantizedTensor) -> None:
        op, layer, name = stage.op.op, stage.op.name, stage.inputs[0]
        dz, kept = self._before_norm(stage, dz, integers=True)
        self._backward_parameters(stage, x, dz, kept)
        below = self.stage_of.get(name)
        if below is None or below.name not in self.backward:
            return
        view = op.view(x.tensor, self._parameter(stage.op, "kernel"), kept.scale if kept else None)
        prepared = self.quantizers.kernels.viewed_integers(layer, view)

        def emit(target: QuantizedTarget, found: RangeStatistics | None = None) -> None:
            family(op).emit_backward_data(self.micro, op, x.tensor, prepared, dz, target, found)

        if self._is_all_of_gradient(name, below):
            code = self.fused_codes[name]
            mask = x if code else None
            self.gradients[name] = self.quantizers.write(
                "gradients", below.op.name, x.tensor.shape,
                lambda y, found: emit(QuantizedTarget(y, mask, code), found),
            )  # fmt: skip
        else:
            target = self._target(name, x)
            self._at(stage.name)
            emit(QuantizedTarget(target.tensor, target.mask, target.activation, target.accumulate))

    def _is_all_of_gradient(self, name: str, below: Stage) -> bool:
        """Whether the gradient of `name` by its one reader is what the stage below multiplies, as integers."""
        return (
            below.name in self.integer and not self._uses_batch(below.norm) and len(self.network.consumers(name)) == 1
        )

    def _backward_parameters(
        self, stage: Stage, x: Tensor | QuantizedTensor, dz: Tensor | QuantizedTensor, kept: batchnorm.Statistics | None
    ) -> None:
        """Gradients of the stage's parameters: sums in each micro-batch, completed at the end of the mini-batch. Around
        kept statistics the sums are those behind scale and shift (see finish.cl)."""
        kernel, bias = self._parameter(stage.op, "kernel"), self._parameter(stage.op, "bias")
        dkernel, dbias = self._gradient(stage.op.name, "kernel"), self._gradient(stage.op.name, "bias")
        dgamma, dbeta = (self._gradient(stage.norm.name, role) if kept else None for role in ("gamma", "beta"))
        kernel_total = dkernel or (self._place(stage, "kernel gradient for gamma", kernel) if dgamma else None)
        sums_total = dbeta if kept else dbias
        if sums_total is None and kept and (dgamma or dbias):
            sums_total = self._place(stage, "sum of gradients", kept.scale)
        add = not self.first
        kernel_sum = dz_sum = None
        if kernel_total:
            op = stage.op.op
            emit = (
                partial(family(op).emit_backward_weights, op=op)
                if isinstance(dz, QuantizedTensor)
                else op.emit_backward_weights
            )
            kernel_sum, dz_sum = emit(self.micro, x=x, dy=dz, gradient=kernel_total, sums=sums_total, add=add)
        elif sums_total:
            sums = quantized_copy if isinstance(dz, QuantizedTensor) else reduce
            dz_sum = sums.emit_channel_sums(self.micro, dz, sums_total, add)
        if dz_sum:
            finish.emit_sum(self.finish, dz_sum)
        if kept is None and kernel_sum:
            finish.emit_sum(self.finish, kernel_sum)
        elif kernel_sum:
            products = finish.emit_kernel_sum(self.finish, kernel_sum, kept, self._kernel(stage) if dgamma else None)
            if dgamma:
                finish.emit_gamma(self.finish, products, kept, bias, sums_total, dgamma)
        if kept and dbias:
            finish.emit_bias(self.finish, sums_total, kept, dbias)

    def _place(self, stage: Stage, name: str, like: Tensor) -> Tensor:
        """Room for a gradient that nothing trains, but another one is worked out from."""
        return self.storage.tensor(f"{stage.name}/{name}", like.shape, Role.GRADIENT)

    def _gradient(self, layer: str, role: str) -> Tensor | None:
        return self.storage.gradients.get(f"{layer}/{role}")

    def _update(self, optimizer: Optimizer) -> None:
        self.quantizers.noted.check(self.finish)
        self._at("optimizer")
        total = self.storage.sizes[Role.PARAMETER]
        self.finish.emit_jobs()
        flags = self.storage.stretch(Role.CHECK, 0, self.storage.sizes[Role.CHECK])
        emit_finite_check(self.finish, flags, self.control)
        self.quantizers.noted.learn(self.finish)
        self.finish.emit_jobs()
        self._at("optimizer")
        if statistics := self.storage.sizes.get(Role.STATISTICS):
            lasting, moving = (self.storage.stretch(role, 0, statistics) for role in (Role.STATISTICS, Role.MOVING))
            emit_commit(self.prepare, lasting, moving, self.control)
            emit_commit(self.finish, moving, lasting, self.control)
        ranges = self.storage.ranges if optimizer.weight_decay else [(0, total, False)]
        for offset, nbytes, decay in ranges:
            if nbytes:
                slots = [
                    self.storage.stretch(Role.OPTIMIZER, self.storage.offsets[slot] + offset, nbytes)
                    for slot in self.storage.slots
                ]
                w = self.storage.stretch(Role.PARAMETER, offset, nbytes)
                g = self.storage.stretch(Role.GRADIENT, offset, nbytes)
                optimizer.emit_update(self.finish, w, g, slots, self.control, decay)


def _fold(network: Network, stage: Stage, weights: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    norm: BatchNormalization = stage.norm.op
    get = {role: weights[f"{stage.norm.name}/{role}"].astype(np.float64) for role in norm.weights(stage.norm.shape)}
    scale = get["gamma"] / np.sqrt(get["moving_variance"] + norm.epsilon)
    kernel = weights[f"{stage.op.name}/kernel"].astype(np.float64)
    kernel = kernel.reshape(network.parameters[f"{stage.op.name}/kernel"].weight.packed_shape)
    bias = weights.get(f"{stage.op.name}/bias", np.float64(0.0))
    return kernel * scale, get["beta"] + (bias - get["moving_mean"]) * scale
