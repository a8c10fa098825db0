"""The loss and the backward pass."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from edgelearn.errors import PlanError
from edgelearn.graph.ancestors import ancestors
from edgelearn.graph.fuse import Stage
from edgelearn.graph.network import Node
from edgelearn.ops import Loss, Target, batchnorm, finish
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.control import Answers
from edgelearn.ops.copy import emit_copy
from edgelearn.ops.function import LINEAR
from edgelearn.ops.quantized import activation_of, family
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored, is_integers, tensor_of
from edgelearn.ops.sums import Sum
from edgelearn.ops.tensor import Tensor

from .emitter import stored_as, targets_as
from .lowering import Lowering, linear, norm
from .parameters import emit_parameter_gradients, gradient_workspace


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
            quantized_copy.emit_to_floats(self.micro, dz, replace(target, mask=y, activation=function))
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
