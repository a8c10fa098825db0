"""Lower one program: forward pass, loss, backward pass, update."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.compile.memory.activation_memory import ActivationMemory
from edgelearn.compile.memory.rematerialiser import Rematerialisation
from edgelearn.compile.program import Program, ProgramKey
from edgelearn.compile.request import Request
from edgelearn.compile.storage import Storage
from edgelearn.ops import Traits
from edgelearn.ops.loss import emit_count
from edgelearn.ops.tensor import Tensor

from .backward import BackwardPass
from .forward import ForwardPass
from .lowering import Lowering
from .update import emit_update


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
