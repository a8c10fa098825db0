"""The forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from edgelearn.graph.fuse import Stage
from edgelearn.graph.network import Network
from edgelearn.ops import Add, Conv2D, Dense, Epilogue, Target, batchnorm
from edgelearn.ops import quantized_convolution as quantized_convolution
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.copy import emit_padded
from edgelearn.ops.function import LINEAR
from edgelearn.ops.quantized import activation_of, family
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored, is_integers
from edgelearn.ops.tensor import BLOCK, Tensor, pack
from edgelearn.ops.transpose import emit_prepared

from . import residual
from .emitter import stored_as
from .lowering import Lowering, linear, norm


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
                value = quantized_copy.emit_padded(self.micro, value)
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
            if behind := residual.stages_behind(lowering, stage, x):
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
            quantized_copy.emit_forward(self.micro, integers, target, activation)

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
        added, output = residual.residual_of(self.lowering, stage, behind), behind[-1].output

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
